"""Machines and a stack by hand, for prices that a person can check."""

from __future__ import annotations

from dataclasses import replace

from autoplan.ir.layout import Axis, Mesh
from autoplan.ir.machine import Device, Hardware, Host, Level, Stack

DEVICE = Device(
    kind="toy",
    memory=80 << 30,
    peak_flops={"bf16": 100e12, "fp32": 20e12},
    peak_flops_for_mfu=100e12,
    memory_bandwidth=1e12,
    gemm_efficiency=0.8,
    gemm_half_flops=1e9,
    attention_efficiency=0.4,
    memory_efficiency=0.5,
    launch=5e-6,
)
HOST = Host(memory=1 << 40, cores=64, device_bandwidth=25e9)
FAST = Level("gpu", 8, 200e9, 1e-6)
OWN_NIC = Level("node", 16, 25e9, 10e-6)
SHARED_NIC = replace(OWN_NIC, shared_by=8)
STACK = Stack(
    "toy",
    constants={
        "pointwise_factor": 2.0,
        "host_layer_forward_s": 1e-3,
        "fixed_step_s": 0.01,
        "framework_bytes": 1e9,
        "allocator_fraction": 0.03,
        "overlap_contention": 1.1,
    },
)


def cluster(*levels: Level, **host: object) -> Hardware:
    """A machine of these levels; the first one joins the devices of a node."""
    return Hardware(
        "toy",
        DEVICE,
        levels or (FAST, OWN_NIC),
        replace(HOST, **host),  # type: ignore[arg-type]
        devices_per_node=(levels or (FAST,))[0].size,
    )


def line(size: int, stride: int = 1, offset: int = 0) -> Mesh:
    """A mesh of one axis."""
    return Mesh((Axis("x", size, stride),), offset)
