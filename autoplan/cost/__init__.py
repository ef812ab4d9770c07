"""Costs (floor 2): seconds and bytes of instructions on a machine with a software stack.

Everything that has a price is priced here and nowhere else: `search` compares candidates, and
`simulate` runs a Program, with the same functions. Formulas live here, numbers in the profiles: a
constant is read from `Hardware` or `Stack`, whose files say where it comes from.

    compute       ops.Work            -> seconds     roofline with a ramp for small products
    collectives   groups of devices   -> Terms       latency and bandwidth of each level crossed
      torus: what groups have of the links of one
    memory        counted bytes       -> lines of the memory account that are estimated
    flops         Graph               -> model FLOP of a step, what MFU is counted against
    uncertainty   how sure a step time is
    pricer        the three together, for whole segments and, cached, for single steps

What is counted exactly (bytes of buffers, order of instructions) belongs to the Program; what may
overlap belongs to the simulator. A price is the time of one instruction alone on its stream.

Communication is the least of two lines in bytes, `Terms`: libraries send short messages by
protocols of less latency and less bandwidth, so measured rates rise over three decades of sizes,
which one line misses by half. Each line takes the least latency and the least time per byte of the
algorithms that a library has, which it mixes and pipelines. Prices therefore never exceed any one
algorithm's, and never fall when bytes, ranks or work grow or a link slows. `bytes` are always those
of *one rank's input before the step*; several operands that share a message are added up.

Laws, tested: nothing costs nothing; monotone; the scalar path of the search and the table path of
the simulator give the same bits; half of the published collectives are met within 10 % from 1 MiB
and within 25 % below, on every machine (`scripts/collective_accuracy.py`).

To add a collective: its algorithm in `collectives`. To add a constant: a field of `files.stack` or
`files.hardware`, with evidence, and its use in one formula here.
"""

from autoplan.cost.collectives import Geometry, Reach, Terms, collective_terms, transfer_terms
from autoplan.cost.compute import Processor
from autoplan.cost.flops import forward_flops, model_flops
from autoplan.cost.memory import Beside, estimated_lines
from autoplan.cost.pricer import Measures, Pricer
from autoplan.cost.uncertainty import half_width, part_spreads, spread_of

__all__ = [
    "Beside",
    "Geometry",
    "Measures",
    "Pricer",
    "Processor",
    "Reach",
    "Terms",
    "collective_terms",
    "estimated_lines",
    "forward_flops",
    "half_width",
    "model_flops",
    "part_spreads",
    "spread_of",
    "transfer_terms",
]
