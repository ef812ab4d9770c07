"""Search real models on real machines, shrink every plan found, run it here and verify it.

    OMP_NUM_THREADS=1 python scripts/verify_searched_plans.py [--top N]

Each plan is rehearsed (same placements, stages and schedule on two ranks an axis), its Program
checked, run for one step in lock-step and compared with the unsharded reference; the memory that
the interpreter counts must equal the simulated account on every rank. Ends with 5 if a plan fails.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

import torch

from autoplan.errors import MismatchError
from autoplan.ir.plan import Plan
from autoplan.lower import lower
from autoplan.lower.check import check
from autoplan.rehearsal import rehearse
from autoplan.runtime.data import Shape, open_batches
from autoplan.runtime.execute import execute, whole_records
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial, verify
from autoplan.search import Request, search
from autoplan.simulate import account
from autoplan.workflow import Options, Question
from autoplan.workflow.question import resolve, step_graph

QUESTIONS = (
    ("llama-2-13b", "rtx4090:64", 128, 4096, ()),
    ("llama-2-70b", "a100-80g:128", 256, 4096, ("device.memory=40GiB",)),
    ("llama-3.1-8b", "a100-80g:16", 64, 8192, ("levels.node.bandwidth=3GB/s",)),
    ("gpt3-175b", "h100-80g:256", 512, 2048, ()),
    ("gemma-7b", "rtx4090:32", 64, 4096, ()),
    ("qwen3-8b", "h100-80g:16", 32, 8192, ()),
    ("gpt-neox-20b", "a100-80g:32", 64, 2048, ()),
    ("phi-4", "h100-80g:16", 32, 4096, ()),
    ("llama-3.1-405b", "h100-80g:512", 256, 8192, ()),
)
"""(model, machine, global batch, sequence, overrides of the machine)."""


def verified(plan: Plan) -> tuple[bool, float, str]:
    """(whether the rehearsed plan matches and its memory is as simulated, worst error, shape)."""
    small = rehearse(plan)
    graph = step_graph(small.model, small.workload)
    program = lower(graph, small)
    check(program)
    workload = small.workload
    shape = Shape(workload.global_batch_size, workload.seq_len, graph.extent["v"])
    batches = open_batches(shape, workload.seed, None)
    result = execute(program, graph, Settings(1, workload.seed, batches))
    records, unequal = whole_records(result)
    verdict = verify(Trial(graph, workload, batches), records, unequal)
    foretold = {
        rank: account(stage).peak for stage in program.stages for rank in stage.mesh.devices()
    }
    what = f"{len(small.stages)} stages of {small.stages[0].mesh.size}"
    return verdict.verified and result.peaks == foretold, verdict.max_gradient_error, what


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--top", type=int, default=8)
    top = parser.parse_args().top
    torch.set_num_threads(1)
    failed = total = 0
    for model, machine, batch, seq_len, overrides in QUESTIONS:
        options = Options(global_batch_size=batch, seq_len=seq_len)
        asked = resolve(Question(model, machine, overrides=overrides, options=options))
        given = asked.graph, asked.config, asked.hardware, asked.stack, asked.workload
        for row in search(Request(*given, top=top)).plans:
            right, error, what = verified(row.plan)
            total, failed = total + 1, failed + (not right)
            print(f"{model:16} {machine:14} {what:18} {error:.1e} {'ok' if right else 'WRONG'}")
    print(f"{total - failed} of {total} plans verified, memory equal on every rank")
    return MismatchError.exit_code if failed else 0


if __name__ == "__main__":
    sys.exit(main())
