"""Compare: in which decisions do plans differ, and what do the differences cost?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, Problem
from autoplan.files.data import is_file
from autoplan.files.plan import dump_plan
from autoplan.files.problems import Problems
from autoplan.workflow.documents import Loaded, load_plan
from autoplan.workflow.prediction import Priced

INPUTS = ("model", "hardware", "stack", "workload")
DECISIONS = ("stages", "schedule", "orders", "lifetimes", "strategies", "stored", "routes")
NUMBERS = (
    "step_time_s", "step_time_interval_s", "tokens_per_s", "tokens_per_s_per_device", "mfu",
    "peak_memory_bytes", "breakdown_s",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Plans side by side.

    Attributes:
        names: their files.
        plans: what they say.
        inputs: path -> value per plan, where what was asked differs.
        parallel: pin key -> value per plan, where it differs.
        decisions: path of a decision -> value per plan, where it differs.
        warnings: what the files say otherwise than derived.
    """

    names: tuple[str, ...]
    plans: tuple[Priced, ...]
    inputs: Mapping[str, Sequence[Any]]
    parallel: Mapping[str, Sequence[Any]]
    decisions: Mapping[str, Sequence[Any]]
    warnings: tuple[str, ...] = ()

    @property
    def document(self) -> dict[str, Any]:
        """For `--json`; lists are in the order of the files."""
        fastest = min(priced.predicted["step_time_s"] for priced in self.plans)
        return {
            "plans": [
                {
                    "file": name,
                    "parallel": dict(priced.parallel),
                    "verdict": priced.verdict,
                    "slower": priced.predicted["step_time_s"] / fastest - 1,
                    "predicted": {key: priced.predicted[key] for key in NUMBERS},
                }
                for name, priced in zip(self.names, self.plans, strict=True)
            ],
            "inputs": {key: list(values) for key, values in self.inputs.items()},
            "parallel": {key: list(values) for key, values in self.parallel.items()},
            "decisions": {key: list(values) for key, values in self.decisions.items()},
        }


def plan_compare(paths: Sequence[str]) -> Comparison:
    """Two or more plan files, compared.

    Raises:
        InputError: fewer than two, or a file that is no plan; every problem at once.
    """
    problems = Problems("compare")
    if len(paths) < 2:
        problems.found.append(Problem("arguments", "", f"{len(paths)} plans", "at least two"))
    tries = [problems.attempt(partial(_load, path)) for path in paths]
    loaded = [one for one in tries if one is not None]
    problems.check()
    plans = tuple(one.priced for one in loaded)
    documents = [dump_plan(p.plan, p.parallel, None, None, "") for p in plans]
    keys = dict.fromkeys(key for priced in plans for key in priced.parallel)
    return Comparison(
        names=tuple(paths),
        plans=plans,
        inputs=_different([_part(document, INPUTS) for document in documents]),
        parallel=_where_different({k: [p.parallel.get(k) for p in plans] for k in keys}),
        decisions=_different([_part(document, DECISIONS) for document in documents]),
        warnings=tuple(warning for one in loaded for warning in one.warnings),
    )


def _load(path: str) -> Loaded:
    if not is_file(Path(path)):
        raise InputError(Problem("arguments", "", f"`{path}`", "a plan file"))
    return load_plan(path)


def _part(document: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return dict(_leaves("", {key: document.get(key) for key in keys}))


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(path, value) of everything but digests and references, which say nothing more."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in ("digest", "reference"):
                yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(f"{path}[{index}]", item)
    else:
        yield path.replace(".embedded", ""), value


def _different(tables: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return _where_different({key: [table.get(key) for table in tables] for key in keys})


def _where_different(rows: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}
