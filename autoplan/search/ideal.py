"""A bound on every plan: its matrix products alone."""

from __future__ import annotations

from math import prod

from autoplan.ir.graph import Block
from autoplan.search.result import Request


def ideal_seconds(request: Request) -> float:
    """Matrix products of one step at the device's best rate on all devices.

    Source: 6 FLOP per matrix weight and token, forward and backward of a dense model.
    """
    graph, workload, device = request.graph, request.workload, request.hardware.device
    tokens = workload.global_batch_size * workload.seq_len
    flops = 0.0
    for instance in graph.instances:
        block = graph.blocks[instance.block]
        for op in (*block.forward, *block.backward):
            if op.family.startswith("linear"):
                weight = next(n for n in (*op.inputs, *op.outputs) if _is_weight(block, n))
                dims = block.tensors[weight].dims
                flops += 2.0 * tokens * prod(graph.extent[d] for d in dims)
    rate = device.peak_flops[workload.precision.compute] * device.gemm_efficiency
    return flops / (rate * request.hardware.count)


def _is_weight(block: Block, name: str) -> bool:
    return block.tensors[name].role in ("parameter", "parameter_gradient")
