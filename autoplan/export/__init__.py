"""Other people's files (floor 7): what autoplan knows, in formats that other programs read.

    chrome_trace    Timeline -> the Trace Event Format of chrome://tracing and ui.perfetto.dev

An exporter takes nouns and gives a document; it computes nothing and writes no file.
"""

from autoplan.export.chrome_trace import chrome_trace

__all__ = ["chrome_trace"]
