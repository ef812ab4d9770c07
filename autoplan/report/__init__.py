"""Screens (floor 7): nouns and documents in, rich tables out, no computation.

    words     parallel -> `dp=8 tp=4 zero=1`, headlines
    tables    pieces that several screens share: breakdown, memory per stage
    screens   search, simulate, lower, run
    answers   several machines, sizes of a machine, what to measure
    explanations   explain and compare
    configurations   explain --config: what was read, what would be better
    profiling   profile: steps by part, communication by row
    reading   show: models, machines with the evidence of every number, stacks, plans
    scores    validate: errors by source, or of plans that were run
    page      any of these screens as an HTML file
    drawing   a timeline as a picture in it
    scatter   predicted against measured, likewise

A screen shows what `--json` prints, formatted: whatever a table needs is in the document already.
Every function takes the console to print on; the command line decides which that is.
"""

from autoplan.report.answers import print_ladder, print_machines, print_shortlist
from autoplan.report.configurations import print_better, print_config
from autoplan.report.drawing import draw_timeline
from autoplan.report.explanations import print_comparison, print_explanation
from autoplan.report.fits import print_calibration
from autoplan.report.page import Page
from autoplan.report.profiling import print_profile
from autoplan.report.reading import print_shown
from autoplan.report.scatter import draw_scatter
from autoplan.report.scores import print_scores, print_validation
from autoplan.report.screens import Row, print_details, print_run, print_search, print_simulation
from autoplan.report.words import headline, pin_words

__all__ = [
    "Page",
    "Row",
    "draw_scatter",
    "draw_timeline",
    "headline",
    "pin_words",
    "print_better",
    "print_calibration",
    "print_comparison",
    "print_config",
    "print_details",
    "print_explanation",
    "print_ladder",
    "print_machines",
    "print_profile",
    "print_run",
    "print_scores",
    "print_search",
    "print_shortlist",
    "print_shown",
    "print_simulation",
    "print_validation",
]
