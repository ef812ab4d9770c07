"""Familiar names (floor 2): with `describe`, the only place where parallelisms have names.

    pins          text -> what each key may be
    plan          single values -> a Plan
    restrictions  pins -> what they leave open in a search

The law is `describe(build_plan(pins)) == pins`.
"""

from autoplan.presets.plan import DEFAULT_ORDER, build_plan, settle, spread_layers

__all__ = ["DEFAULT_ORDER", "build_plan", "settle", "spread_layers"]
