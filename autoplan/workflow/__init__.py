"""The verbs chained (floor 8): the public Python API, one function per command.

    Question  ── resolve ──▶ Inputs (graph, machine, stack, workload, pins, what was assumed)
    Inputs    ── plan_search ──▶ SearchAnswer      ranked plans, baselines, how the search went
    Question  ── plan_simulate ──▶ Simulation      one plan, or a Program file, priced
    Question  ── plan_lower ──▶ Lowering           its checked Program
    Question  ── plan_run ──▶ RunReport            executed here or under torchrun, and verified
    Question  ── plan_explain ──▶ Explanation      where time and memory go, what would help
    files     ── plan_compare ──▶ Comparison       decisions that differ, predictions side by side
    Question, machines ── rank_machines ──▶ Ranking    a row each, by time, memory, devices, ...
    plan files  ── validate_plans ──▶ Validation    run here, measured beside predicted
    recorded runs  ── judge_runs ──▶ Judgement    predicted, and how far off, by source
    recorded runs  ── calibrate_runs ──▶ Calibration    fitted constants, as profiles
    name      ── show ──▶ Shown                    a model, machine, stack or plan, for reading

`explain --config` asks about a configuration of other software: `configured` turns it into a
question, which is priced as any other and set beside the plan that a search finds.

A `Question` holds what a person typed, as text; every problem in it is reported at once. Everywhere
a plan is named, a plan file and MODEL HARDWARE with pins are alike. `load_plan` derives again what
a plan file says for people: a `parallel` that does not match its decisions is an error, a
`predicted` that differs is a warning with both.

Nothing is computed twice: `prediction` is the only place that turns a Timeline into the numbers
that people read, and the command line renders those and nothing else. Only `plan_run` loads torch,
and `validate_plans`, which calls it.

`plan_run` can save its state and go on from what another run saved, under another plan:
`checkpoints` says what must be the same (model, optimizer, precision) and tells what is not.
"""

from autoplan.frontends import step_graph
from autoplan.workflow.calibrating import Calibration, calibrate_runs, write_profiles
from autoplan.workflow.comparing import Comparison, plan_compare
from autoplan.workflow.documents import load_plan, plan_document, with_spans
from autoplan.workflow.explaining import Explanation, plan_explain
from autoplan.workflow.goals import GOALS
from autoplan.workflow.judging import Judgement, judge_runs
from autoplan.workflow.ladder import Rung
from autoplan.workflow.machines import MachineAnswer, Ranking, rank_machines
from autoplan.workflow.prediction import Priced, price
from autoplan.workflow.question import Inputs, Options, Question, resolve
from autoplan.workflow.running import RunReport, RunRequest, plan_run, prepare_file
from autoplan.workflow.shortlist import Candidate, shortlist
from autoplan.workflow.showing import Shown, show
from autoplan.workflow.torchrun import Torchrun
from autoplan.workflow.validating import Validation, validate_plans
from autoplan.workflow.verbs import (
    Lowering,
    SearchAnswer,
    Simulation,
    plan_lower,
    plan_search,
    plan_simulate,
)

__all__ = [
    "GOALS",
    "Calibration",
    "Candidate",
    "Comparison",
    "Explanation",
    "Inputs",
    "Judgement",
    "Lowering",
    "MachineAnswer",
    "Options",
    "Priced",
    "Question",
    "Ranking",
    "RunReport",
    "RunRequest",
    "Rung",
    "SearchAnswer",
    "Shown",
    "Simulation",
    "Torchrun",
    "Validation",
    "calibrate_runs",
    "judge_runs",
    "load_plan",
    "plan_compare",
    "plan_document",
    "plan_explain",
    "plan_lower",
    "plan_run",
    "plan_search",
    "plan_simulate",
    "prepare_file",
    "price",
    "rank_machines",
    "resolve",
    "shortlist",
    "show",
    "step_graph",
    "validate_plans",
    "with_spans",
    "write_profiles",
]
