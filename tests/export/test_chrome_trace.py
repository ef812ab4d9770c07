"""Every span becomes one complete event, in microseconds, on a named thread of its stage."""

from autoplan.export import chrome_trace
from autoplan.ir.timeline import Span, Timeline


def test_spans_become_events():
    spans = (
        Span(0, "compute", "F", 0.0, 0.5),
        Span(0, "send", "SEND", 0.5, 0.75),
        Span(1, "compute", "F", 0.75, 1.0),
    )
    events = chrome_trace(Timeline(1.0, spans))["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert [(e["pid"], e["name"], e["ts"], e["dur"]) for e in complete] == [
        (0, "F", 0.0, 5e5), (0, "SEND", 5e5, 2.5e5), (1, "F", 7.5e5, 2.5e5),
    ]  # fmt: skip
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [names[e["pid"], e["tid"]] for e in complete] == ["compute", "send", "compute"]
