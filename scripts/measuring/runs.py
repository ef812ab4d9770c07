"""Measured rows as recorded runs, which `autoplan validate --runs` and `calibrate` read.

The format of recorded runs is that of published ones; a plan that it has no words for is left out
(it stays in the results, whose plans are whole).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoplan.files.text import write_text

from .predicted import Row

SOURCE = "campaign"
STRAIGHT = ("tp", "pp", "cp", "dp", "sp")
"""Keys of `parallel` that a run spells alike."""


def write_runs(path: Path, rows: Iterable[Row], profile: str) -> None:
    """Write those of the rows that can be said, one a line.

    Args:
        path: of the file.
        rows: measured.
        profile: of the machine.
    """
    runs = [run_of(row, profile) for row in rows if has_words(row["plan"]["parallel"])]
    write_text(path, "".join(f"{json.dumps(run)}\n" for run in runs))


def has_words(parallel: dict[str, Any]) -> bool:
    """Whether the format can tell a layout: neither a second split of models nor a head whole."""
    return parallel["tp2"] == 1 and (parallel["tp"] == 1 or parallel["vocab"] is True)


def run_of(row: Row, profile: str) -> dict[str, Any]:
    """The run that a row measured; units stand in the keys."""
    plan, measured = row["plan"], row["measured"]
    model, workload, parallel = plan["model"]["embedded"], plan["workload"], plan["parallel"]
    same = {key: model[key] for key in ("hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")}
    return {
        "id": row["id"],
        "source": SOURCE,
        "model": {
            "name": model["name"], "n_layers": model["layers"], **same,
            "gated_ffn": model["gated"], "tied_embeddings": model["tied_embeddings"],
        },
        "seq_len": workload["seq_len"],
        "global_batch": workload["global_batch_size"],
        "micro_batch": parallel["micro_batch"],
        "hardware": {"device": profile, "count": row["ranks"]},
        "parallel": {
            **{key: parallel[key] for key in STRAIGHT}, "zero_stage": parallel["zero"],
        },
        "recompute": parallel["recompute"],
        "precision": row["precision"],
        "schedule": parallel["schedule"],
        "stack": plan["stack"]["reference"],
        "measured": {"step_time_s": measured["step_time_s"]},
        "flags": ["disturbed"] if measured["disturbed"] else [],
        "notes": f"{row['pins']}; visits differ by {measured['spread']:.0%}",
    }  # fmt: skip
