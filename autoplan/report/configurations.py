"""The screens of explain --config: what was read, how the run did, what would be better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from autoplan.report.screens import Row
from autoplan.report.tables import share_text, step_text, table
from autoplan.report.words import pin_words
from autoplan.units import format_bytes, format_seconds

EVEN = 0.005
"""A difference of less than this share is none."""


def print_config(console: Console, config: Mapping[str, Any]) -> None:
    """What a configuration decides, and what of it is not part of the prediction.

    Args:
        console: where to print.
        config: as in `explanation` of `--json`.
    """
    pins = " ".join(f"{key}={_word(value)}" for key, value in config["pins"].items())
    console.print(f"{config['file']} ({config['stack']}): {pins}", soft_wrap=True)
    for key, words in (("not_understood", "not understood"), ("not_priced", "without a price")):
        if config[key]:
            console.print(f"{words}: {'; '.join(config[key])}", soft_wrap=True)


def _word(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def print_better(
    console: Console, row: Row, config: Mapping[str, Any], better: Mapping[str, Any]
) -> None:
    """The configuration beside the best plan of a search, and both answers in a sentence.

    Args:
        console: where to print.
        row: the configuration's plan.
        config: as in `explanation` of `--json`.
        better: likewise.
    """
    if "refused" not in better:
        columns = ("step time", "MFU", "memory", "fits")
        made = table("with the same model, machine, batch and software", "", "plan", *columns)
        made.columns[1].justify = "left"
        best = Row("the best found", better["parallel"], better["predicted"], better["verdict"])
        for one in (Row("this configuration", row.parallel, row.predicted, row.verdict), best):
            made.add_row(
                one.name,
                pin_words(one.parallel),
                step_text(one.predicted),
                share_text(one.predicted["mfu"]),
                format_bytes(one.predicted["peak_memory_bytes"]),
                one.verdict,
            )
        console.print(made)
    if config["run"]:
        console.print(run_text(config["run"]), soft_wrap=True)
    console.print(better_text(better), soft_wrap=True)


def run_text(run: Mapping[str, Any]) -> str:
    """Whether a run was as fast as its configuration should be."""
    seconds, share = format_seconds(run["step_time_s"]), f"{abs(run['slower']):.1%}"
    if run["verdict"] == "as_predicted":
        return f"the run is as good as this configuration should be: {seconds}, in the interval"
    if run["verdict"] == "slower":
        return f"the run is slower than this configuration should be: {seconds}, {share} more"
    return f"the run is faster than this configuration was thought to be: {seconds}, {share} less"


def better_text(better: Mapping[str, Any]) -> str:
    """What a better plan would give."""
    if "refused" in better:
        return f"no better plan: {better['refused']}"
    if better["faster"] < EVEN:
        return "no better plan was found"
    text = f"a better plan takes {better['faster']:.1%} less time: {better['pins']}"
    if better["expected_step_time_s"] is not None:
        text += f"; {format_seconds(better['expected_step_time_s'])} if it does as this run did"
    return text + ("; the intervals overlap, so measure it" if better["ties"] else "")
