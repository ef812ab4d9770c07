"""Frontends (floor 2): model configuration -> Graph -> training step.

`decoder` writes the forward graph of a dense decoder; `training` derives backward operators from
the families' gradient rules. To add a model family: map its file to a `DecoderConfig` in `files`,
and extend `decoder` where it differs.
"""

from autoplan.frontends.decoder import build_graph
from autoplan.frontends.training import derive_backward, step_graph, training_step

__all__ = ["build_graph", "derive_backward", "step_graph", "training_step"]
