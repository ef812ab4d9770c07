"""Timeline -> Chrome's trace format."""

from __future__ import annotations

from typing import Any

from autoplan.ir.timeline import Timeline

MICROSECONDS = 1e6
"""Per second: the unit of `ts` and `dur`. Source: Trace Event Format, "Event descriptions"."""


def chrome_trace(timeline: Timeline) -> dict[str, Any]:
    """The document: a process per stage, a thread per stream, a complete event per span.

    Source: Trace Event Format (Chromium), complete events (`X`) and metadata events (`M`).
    """
    threads: dict[tuple[int, str], int] = {}
    for span in timeline.spans:
        threads.setdefault((span.stage, span.stream), len(threads))
    events: list[dict[str, Any]] = []
    for stage in dict.fromkeys(stage for stage, _ in threads):
        events.append(_name("process_name", stage, 0, f"stage {stage}"))
    for (stage, stream), thread in threads.items():
        events.append(_name("thread_name", stage, thread, stream))
    for span in timeline.spans:
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.stream,
                "pid": span.stage,
                "tid": threads[span.stage, span.stream],
                "ts": span.start * MICROSECONDS,
                "dur": (span.end - span.start) * MICROSECONDS,
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _name(what: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": text}}
