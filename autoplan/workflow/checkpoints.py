"""What a run's checkpoint is of, and whether a run may go on from one.

The identity is what must not change: the model's fields, the optimizer, the dtypes, what is
trained. Degrees, stages and stored layouts are no part of it. What may change, such as the seed or
a learning rate, is written down as circumstances, and a run that changes one says so.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from autoplan.errors import InputError, Problem
from autoplan.files.checkpoint import (
    Checkpoint,
    changes,
    read_checkpoint,
    refusals,
    save_problem,
    tensor_types,
)
from autoplan.ir.plan import Plan
from autoplan.ir.program import Program

FREE = ("embedding_dropout", "attention_dropout", "residual_dropout", "initializer_range")
"""Fields of a model that say how it is trained rather than what it computes."""


def state_of(plan: Plan, program: Program, data: str) -> Checkpoint:
    """The state of a plan's training before its first step, as a checkpoint describes it.

    Args:
        plan: as it is executed.
        program: the plan, lowered.
        data: the file that is read, or "" for synthetic tokens.
    """
    workload, model = plan.workload, plan.model
    optimizer = workload.optimizer
    of_model = {
        field.name: str(getattr(model, field.name))
        for field in fields(model)
        if field.name != "name"
    }
    free = {name: of_model.pop(name) for name in FREE}
    identity = {f"model {name}": value for name, value in of_model.items()}
    identity |= {
        "optimizer": optimizer.name,
        "precision": str(workload.precision),
        "trainable": workload.trainable,
    }
    circumstances = {f"optimizer {name}": str(value) for name, value in optimizer.settings.items()}
    circumstances |= {f"model {name}": value for name, value in free.items()}
    circumstances |= {
        "dropout": "the model's" if workload.dropout is None else str(workload.dropout),
        "loss scale growth interval": str(workload.loss_scale.growth_interval),
        "lengths": str(workload.lengths),
        "optimizer clip": str(optimizer.clip),
        "seed": str(workload.seed),
        "global batch size": str(workload.global_batch_size),
        "sequence length": str(workload.seq_len),
        "data": _data(data),
    }
    return Checkpoint(0, identity, circumstances, tensor_types(program))


def unfit(save: str, resume: str) -> list[Problem]:
    """What is wrong with the folders of a run, whatever it runs; "" is none."""
    problem = save_problem(Path(save)) if save else None
    problems = [problem] if problem else []
    if resume:
        try:
            read_checkpoint(Path(resume))
        except InputError as error:
            problems += error.problems
    return problems


def go_on(folder: Path, wanted: Checkpoint) -> tuple[int, tuple[str, ...]]:
    """Begin where a checkpoint ends.

    Args:
        folder: the checkpoint.
        wanted: `state_of` the run.

    Returns:
        (index of the first step, notes: where the run begins and what goes on differently).

    Raises:
        InputError: there is no whole checkpoint, or it is of something else: every difference.
    """
    found = read_checkpoint(folder)
    problems = tuple(refusals(found, wanted, str(folder)))
    if problems:
        raise InputError(problems)
    notes = [f"resumes at step {found.step} from {folder}"]
    notes += [f"resumes with {change}" for change in changes(found, wanted)]
    return found.step, tuple(notes)


def _data(data: str) -> str:
    """A file by name and size: it may lie elsewhere now."""
    path = Path(data)
    return f"{path.name}, {path.stat().st_size} bytes" if data else "synthetic"
