"""Plain choices, as pins: what people take when they do not search."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.ir.machine import Hardware
from autoplan.ir.model import DecoderConfig

SHARDED = ("zero=3", "zero=3,recompute=full")


def plain_choices(config: DecoderConfig, hardware: Hardware) -> dict[str, Iterator[str]]:
    """Name -> pins to try in order: the first that fits in memory is the choice.

    data: whole copies of the model; fsdp: copies whose state is split over all devices, with layers
    computed again if need be; megatron: weights split inside a node as far as heads and widths
    divide, then stages, with layers computed again where that is not enough.

    Source: Rajbhandari et al. 2020, "ZeRO" (stages); Narayanan et al. 2021, "Efficient large-scale
    language model training on GPU clusters using Megatron-LM", section 3 (rule of thumb).
    """
    width = _width(config, hardware)
    piped = (
        f"tp={width},pp={stages},zero=1,recompute={recompute}"
        for stages in _depths(config, hardware, width)
        for recompute in ("none", "full")
    )
    return {"data": iter(("zero=0",)), "fsdp": iter(SHARDED), "megatron": piped}


def leanest_choices(config: DecoderConfig, hardware: Hardware) -> tuple[str, ...]:
    """Those of the plain choices that need the least memory; one of them is the leanest."""
    width = _width(config, hardware)
    depths = _depths(config, hardware, width)
    pairs = dict.fromkeys((depths[0], depths[-1]))
    piped = (f"tp={width},pp={stages},zero=1,recompute=full" for stages in pairs)
    return (SHARDED[-1], *piped)


def _width(config: DecoderConfig, hardware: Hardware) -> int:
    """Devices of a node over which weights split."""
    node = min(hardware.devices_per_node, hardware.count)
    return max(
        t for t in range(1, node + 1) if node % t == config.kv_heads % t == config.ffn % t == 0
    )


def _depths(config: DecoderConfig, hardware: Hardware, width: int) -> list[int]:
    """Numbers of stages that the other devices allow, ascending."""
    rest = hardware.count // width
    return [d for d in range(1, min(rest, config.layers) + 1) if rest % d == 0]
