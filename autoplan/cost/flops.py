"""How much arithmetic does the model need? The numerator of MFU.

Convention, of PaLM (Chowdhery et al. 2022, appendix B) and Megatron (Narayanan et al. 2021): matrix
products and attention forward and backward, attention over the full s², or with a sliding window
over the full window of every query, in packed sequences over the squares of their documents, no
causal halving; no recomputation, neither of layers nor of the scores inside the attention kernel;
no look-up of embeddings, the output head included. Padding counts: it is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autoplan.ir.graph import Block, Graph, Instance, Op
from autoplan.ir.program import Instr, Register
from autoplan.ops import FAMILIES
from autoplan.ops.attention import BACKWARD_PRODUCTS, FORWARD_PRODUCTS

BACKWARD_OVER_FORWARD = 2
"""Each product of the forward has two in the backward, one per operand."""


def model_flops(graph: Graph, batch: int, masked: bool = False) -> float:
    """FLOP of one training step.

    Backward operators that a frozen part does not need are not in the graph, so not counted.

    Args:
        graph: a training step (`frontends.training.training_step`).
        batch: sequences per step over all devices.
        masked: whether scores behind the causal mask are left out, as some sources count.
    """
    extent = {**graph.extent, "b": batch}
    uses = Counter(instance.block for instance in graph.instances)
    return float(sum(
        count * sum(
            _op_flops(op, graph.blocks[name], extent, masked) for op in _ops(graph.blocks[name])
        )
        for name, count in uses.items()
    ))  # fmt: skip


def forward_flops(graph: Graph, instances: Sequence[Instance], batch: int) -> float:
    """FLOP of the forward pass of some instances: what recomputing them costs again."""
    forward = {name: replace(block, backward=()) for name, block in graph.blocks.items()}
    return model_flops(replace(graph, blocks=forward, instances=tuple(instances)), batch)


def _ops(block: Block) -> tuple[Op, ...]:
    return (*block.forward, *block.backward)


def _op_flops(op: Op, block: Block, extent: dict[str, int], masked: bool) -> float:
    """FLOP of one operator on whole tensors, without recomputed scores."""

    def registers(names: tuple[str, ...]) -> list[Register]:
        shapes = [tuple(extent[dim] for dim in block.tensors[name].dims) for name in names]
        return [Register("", shape, "fp32", "") for shape in shapes]

    attrs = tuple((name, value) for name, value in op.attrs if masked or name != "causal")
    work = FAMILIES[op.family].measure(
        Instr(op.family, (), (), attrs), registers(op.inputs), registers(op.outputs)
    )
    if op.family in ("attention_grad", "packed_attention_grad"):
        return work.flops * BACKWARD_OVER_FORWARD * FORWARD_PRODUCTS / BACKWARD_PRODUCTS
    return work.flops
