"""Plain choices, as pins: what people take when they do not search.

Each has a name and pins to try in order; the first that fits in memory counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.machine import Hardware
from autoplan.ir.model import DecoderConfig


def plain_choices(config: DecoderConfig, hardware: Hardware) -> dict[str, Iterator[str]]:
    """Name -> pins to try, in order.

    data: whole copies of the model; fsdp: copies whose state is split over all devices, with layers
    computed again if need be; megatron: the rule of thumb of `_split_then_pipeline`.

    Source: Rajbhandari et al. 2020, "ZeRO" (stages); Zhao et al. 2023, "PyTorch FSDP".
    """
    return {
        "data": iter(("zero=0",)),
        "fsdp": iter(("zero=3", "zero=3,recompute=full")),
        "megatron": _split_then_pipeline(config, hardware),
    }


def _split_then_pipeline(config: DecoderConfig, hardware: Hardware) -> Iterator[str]:
    """Split weights inside a node as far as heads and widths divide, then add stages.

    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters
    using Megatron-LM", section 3: tensor parallelism up to the size of a node, then pipeline
    stages; layers are computed again where that is not enough.
    """
    node = min(hardware.devices_per_node, hardware.count)
    width = max(
        t
        for t in range(1, node + 1)
        if node % t == config.kv_heads % t == config.ffn % t == 0
    )
    rest = hardware.count // width
    for stages in range(1, min(rest, config.layers) + 1):
        if rest % stages == 0:
            for recompute in ("none", "full"):
                yield f"tp={width},pp={stages},zero=1,recompute={recompute}"
