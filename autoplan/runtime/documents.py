"""Batches whose documents have unequal lengths: cut out of other batches, padded or packed.

Lengths are hashes of (seed, step, sequence, place in it), so that they, like tokens, are a function
of the step alone. A document's last position has no target: what follows is another document.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from autoplan.ir.lengths import Lengths
from autoplan.runtime.data import MASKED, Batch, Batches, Shape
from autoplan.runtime.random import hash_bits, hash_key

PADDING = 0
"""Id of a position beyond its document; nothing that is learned depends on it."""


class DocumentBatches:
    """Cuts the sequences of other batches into documents."""

    def __init__(self, whole: Batches, lengths: Lengths, seed: int) -> None:
        """Draw lengths from a seed.

        Args:
            whole: batches without documents, which say what the tokens are.
            lengths: how documents are distributed, none longer than a sequence.
            seed: of the run.
        """
        self._whole, self._lengths, self._seed = whole, lengths, seed

    @property
    def shape(self) -> Shape:
        """Of every batch."""
        return self._whole.shape

    def ends(self, step: int) -> Tensor:
        """Where each document of a step ends, [sequences documents]; packed ones fill the row."""
        lengths = torch.tensor([length for length, _ in self._lengths.histogram])
        weights = torch.tensor([w for _, w in self._lengths.histogram], dtype=torch.float64)
        shape, packed = self.shape, self._lengths.packed
        most = -(-shape.seq_len // int(lengths[0])) if packed else 1
        places = torch.arange(shape.sequences * most).view(shape.sequences, most)
        bits = hash_bits(places, hash_key(f"{self._seed}/lengths/{step}")) >> 32 & 0xFFFFFFFF
        shares = weights.cumsum(0) / weights.sum()
        drawn = torch.searchsorted(shares, bits.double() / 2**32, right=True)
        return lengths[drawn.clamp_(max=len(lengths) - 1)].cumsum(1).clamp_(max=shape.seq_len)

    def batch(self, step: int) -> Batch:
        """The global batch of a step."""
        ids, targets, _ = self._whole.batch(step)
        ends = self.ends(step)
        beyond = torch.arange(self.shape.seq_len) >= ends[:, -1:]
        targets = targets.masked_fill(beyond, MASKED).scatter(1, ends - 1, MASKED)
        valid = int((targets != MASKED).sum())
        return ids.masked_fill(beyond, PADDING), targets, max(1, valid)

    def more(self, step: int) -> Mapping[str, Tensor]:
        """Of packed sequences: the document of each position, and its place in that document."""
        if not self._lengths.packed:
            return {}
        ends = self.ends(step)
        places = torch.arange(self.shape.seq_len).expand(self.shape.sequences, -1).contiguous()
        documents = torch.searchsorted(ends, places, right=True)
        starts = torch.cat((torch.zeros_like(ends[:, :1]), ends), 1).gather(1, documents)
        return {"documents": documents, "places": places - starts}
