"""Screens (floor 7): nouns and documents in, rich tables out, no computation.

    words     parallel -> `dp=8 tp=4 zero=1`, headlines
    tables    pieces that several screens share: breakdown, memory per stage
    screens   search, simulate, lower, run
    reading   show: models, machines with the evidence of every number, stacks, plans

A screen shows what `--json` prints, formatted: whatever a table needs is in the document already.
Every function takes the console to print on; the command line decides which that is.
"""

from autoplan.report.reading import print_shown
from autoplan.report.screens import Row, print_run, print_search, print_simulation
from autoplan.report.words import headline, pin_words

__all__ = [
    "Row",
    "headline",
    "pin_words",
    "print_run",
    "print_search",
    "print_shown",
    "print_simulation",
]
