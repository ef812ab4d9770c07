"""What `nvidia-smi topo -m` and nccl-tests print, written from the formats and the figures of
clusters that people have reported.
"""

from __future__ import annotations

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the link between NUMA nodes
  NODE = Connection traversing PCIe and the bridges within a NUMA node
  PHB  = Connection traversing PCIe and a host bridge
  PXB  = Connection traversing several PCIe bridges
  PIX  = Connection traversing at most one PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""


def topology(paths, cards=(), near=lambda device, card: "SYS", affinity=True):
    """The matrix of devices with `paths(i, j)` between them, and cards with `near(i, k)`."""
    count = paths.count
    names = [f"GPU{i}" for i in range(count)] + list(cards)
    head = "\t" + "\t".join(names) + ("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID" * affinity)
    lines = ["\x1b[4m" + head + "\x1b[0m"]
    for i in range(count):
        cells = [" X " if i == j else paths(i, j) for j in range(count)]
        cells += [near(i, k) for k in range(len(cards))]
        behind = f"\t{16 * i}-{16 * i + 15},{128 + 16 * i}\t{i // 4}\t\tN/A" * affinity
        lines.append(f"GPU{i}\t" + "\t".join(cells) + behind)
    for k, card in enumerate(cards):
        cells = [near(i, k) for i in range(count)]
        cells += [" X " if k == other else "SYS" for other in range(len(cards))]
        lines.append(f"{card}\t" + "\t".join(cells))
    return "\n".join(lines) + "\n" + LEGEND


class Paths:
    """Paths of a node: `inner[size]` between devices of one unit of so many, the smallest first."""

    def __init__(self, count, units):
        self.count, self.units = count, units

    def __call__(self, i, j):
        return next(path for size, path in self.units if i // size == j // size)


SWITCHED = Paths(8, [(8, "NV12")])
TWO_SOCKETS = Paths(8, [(4, "PHB"), (8, "SYS")])
BRIDGED = Paths(8, [(2, "NV4"), (4, "NODE"), (8, "SYS")])
BEHIND_SWITCHES = Paths(8, [(2, "PIX"), (4, "NODE"), (8, "SYS")])


TITLES = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
"""
COLUMNS = """\
#
#                                                              out-of-place         in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time ...
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us) ...
"""
SIZES = [1 << shift for shift in range(10, 31, 2)]
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "sendrecv": lambda n: 1.0,
}


def log(test, ranks, seconds, per_host=8, tag="", banner=True):
    """A log of `test`, of which a size takes `seconds(nbytes)`.

    Without a banner nothing names the test or its ranks, as in logs that people paste.
    """
    lines = [f"mpirun -np {ranks} ./build/{test}_perf -b 1K -e 1G -f 4", *TITLES.splitlines()]
    lines += [
        f"#  Rank {r:2d} Group  0 Pid  {100 + r} on  host-{r // per_host} device  {r % per_host} "
        "[0x0f] NVIDIA A100-SXM4-80GB"
        for r in range(ranks)
    ]
    lines = (lines if banner else []) + COLUMNS.splitlines()
    reduces = test in ("all_reduce", "reduce_scatter")
    parts = 1 if test in ("all_reduce", "sendrecv") else ranks
    for nbytes in SIZES:
        time = seconds(nbytes)
        rate = nbytes / time / 1e9
        group = f"{time * 1e6:9.2f} {rate:7.2f} {rate * FACTORS[test](ranks):7.2f}      0"
        word = "sum" if reduces else "none"
        lines.append(
            f"{nbytes:12d} {nbytes // 4 // parts:12d}   float {word:>7} -1 {group} {group}"
        )
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100.1"]
    return "\n".join(tag + line for line in lines) + "\n"
