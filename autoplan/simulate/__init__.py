"""Simulation (floor 4): Program -> Timeline, without running it.

    account   bytes: what a stage holds after each instruction, and where that is most
    calls     segments as the engine needs them, priced once
    engine    seconds: streams of every stage, sends, joint collectives
    step      both together, as a Timeline

The simulator performs the same lists of actions as the runtime, in the same order; it invents
neither an order nor a layout. It knows no formula of a price: `cost.Pricer` says how long an
instruction takes alone, the engine what runs beside what. So an exposed second is one in which a
stage's compute stream really waits, and the breakdown of a stage adds up to the step.

Memory is counted exactly and independently of the runtime, which counts real tensors: both are the
definition in `ir.program`, and tests hold them equal, place included. To the counted lines `cost`
adds those that can only be estimated.

Law: with equal stages and free transfers, every schedule family takes exactly what the closed form
of `pipeline` says; no makespan is below the critical path or the work of a stream; overlapping
without contention is never slower than not overlapping.
"""

from autoplan.simulate.account import Account, account, state_bytes
from autoplan.simulate.engine import Outcome, run
from autoplan.simulate.step import memory_parts, simulate, simulate_priced

__all__ = [
    "Account",
    "Outcome",
    "account",
    "memory_parts",
    "run",
    "simulate",
    "simulate_priced",
    "state_bytes",
]
