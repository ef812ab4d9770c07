"""Familiar names (floor 2): with `describe`, the only place where parallelisms have names.

    pins          text -> what each key may be
    plan          single values -> a Plan
    stages        how its layers lie on stages and chunks
    plain         plain choices that people make without a search, as pins
    legal         degrees that a model and a stack allow
    restrictions  pins -> what they leave open in a search

The law is `describe(build_plan(pins)) == pins`.
"""

from autoplan.presets.legal import padded_vocab, vocab_multiple
from autoplan.presets.pins import DEGREES, Pin, Pins, parse_pins
from autoplan.presets.plan import DEFAULT_ORDER, build_plan, settle
from autoplan.presets.stages import alternates, notes, spread_layers

__all__ = [
    "DEFAULT_ORDER",
    "DEGREES",
    "Pin",
    "Pins",
    "alternates",
    "build_plan",
    "notes",
    "padded_vocab",
    "parse_pins",
    "settle",
    "spread_layers",
    "vocab_multiple",
]
