"""Which degrees a model and a stack allow: every broken rule at once, each with its legal values.

Two kinds of rules: how a preset splits a model, so that a dim divides (`MODEL_RULES`), and what a
stack asks beyond that (`Stack.rules`). Legal values are found by asking the rule about every value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from autoplan.errors import Problem
from autoplan.ir.machine import Stack, StackRule
from autoplan.ir.model import DecoderConfig
from autoplan.ir.workload import Workload
from autoplan.presets.pins import DEGREES, Pins

MOST_TRIED = 64
"""Legal values are looked for up to here, or the number of devices if that is more."""
MOST_SHOWN = 16


@dataclass(frozen=True)
class Case:
    """What rules are asked about.

    Attributes:
        config, workload: the model and its batch.
        values: pin key -> single value, defaults filled in.
    """

    config: DecoderConfig
    workload: Workload
    values: Mapping[str, object]

    def degree(self, key: str) -> int:
        """A degree, or 1 where it is not settled."""
        value = self.values.get(key, 1)
        return value if isinstance(value, int) and value > 0 else 1

    def flag(self, key: str) -> bool:
        """Whether a flag is on, as it is by default."""
        return bool(self.values.get(key, True))

    def at(self, key: str, value: int) -> Case:
        """The same with another value of one key."""
        return replace(self, values={**self.values, key: value})

    def quantity(self, name: str) -> int:
        """A quantity of `ir.machine.QUANTITIES`."""
        if name == "seq_len":
            return self.workload.seq_len
        if name == "micro_batches":
            return self.workload.global_batch_size // (
                self.degree("dp") * self.degree("micro_batch")
            )
        return int(getattr(self.config, name))


@dataclass(frozen=True)
class Rule:
    """One condition on a degree.

    Attributes:
        key: the degree.
        words: what does not divide, of a case.
        holds: whether it is obeyed.
        hint: what helps besides another degree.
    """

    key: str
    words: Callable[[Case], str]
    holds: Callable[[Case], bool]
    hint: Callable[[Case, Stack], str] = lambda case, stack: ""


def _heads_words(case: Case) -> str:
    config = case.config
    if config.heads == config.kv_heads:
        return f"{config.heads} heads"
    return f"{config.heads} heads with {config.kv_heads} key/value heads"


def _heads_divide(case: Case) -> bool:
    """Key/value heads split, or else each one's queries do."""
    groups, tp = case.config.kv_heads, case.degree("tp")
    return groups % tp == 0 or (case.config.heads // groups) % tp == 0


def _heads_divide_over_axes(case: Case) -> bool:
    """The same where one axis may split groups and another the queries of each."""
    groups, tp = case.config.kv_heads, case.degree("tp")
    queries = case.config.heads // groups
    return any(
        tp % outer == groups % outer == 0 and queries % (tp // outer) == 0
        for outer in range(1, tp + 1)
    )


def _position_parts(case: Case) -> int:
    """Into how many parts positions are cut, by cp and by whatever splits nothing else."""
    tp, tp2 = case.degree("tp"), case.degree("tp2")
    if case.flag("sp"):
        return case.degree("cp") * tp * tp2
    return case.degree("cp") * (tp2 if case.config.kv_heads % (tp * tp2) else 1)


def _vocab_parts(case: Case) -> int:
    return (case.degree("tp") if case.flag("vocab") else 1) * case.degree("tp2")


def padded_vocab(vocab: int, tp: int, multiple: int = 128) -> int:
    """Rows of an embedding that a stack pads so that every rank has a multiple of them.

    Source: Megatron-LM, `_vocab_size_with_padding`: up to a multiple of
    `make_vocab_size_divisible_by` (128) x tensor-parallel size; ColossalAI: 64.
    """
    unit = multiple * tp
    return -(-vocab // unit) * unit


def vocab_multiple(stack: Stack) -> int:
    """Rows per rank that a stack pads to: its `pad_vocab_` habit, or 1."""
    found = [habit for habit in stack.habits if habit.startswith("pad_vocab_")]
    return int(found[0].rpartition("_")[2]) if found else 1


def _pad_hint(case: Case, stack: Stack) -> str:
    parts, multiple = _vocab_parts(case), vocab_multiple(stack)
    padded = padded_vocab(case.config.vocab, parts, multiple)
    hint = f"a model file with vocab_size {padded}, padded to a multiple of {multiple} x {parts}"
    return hint + (", or vocab=false" if case.degree("tp2") == 1 else "")


SEARCH_RULES = (
    Rule("tp", _heads_words, _heads_divide_over_axes),
    Rule(
        "tp", lambda case: f"feed-forward width {case.config.ffn}",
        lambda case: case.config.ffn % (case.degree("tp") * case.degree("tp2")) == 0,
    ),
    Rule(
        "tp2", lambda case: f"model width {case.config.hidden}",
        lambda case: case.config.hidden % case.degree("tp2") == 0,
    ),
)  # fmt: skip
"""What holds however a search splits the rest."""

MODEL_RULES = (
    Rule("tp", _heads_words, _heads_divide),
    *SEARCH_RULES[1:],
    Rule(
        "tp", lambda case: f"vocabulary {case.config.vocab}",
        lambda case: case.config.vocab % _vocab_parts(case) == 0, _pad_hint,
    ),
    Rule(
        "cp", lambda case: f"sequence {case.workload.seq_len} in {_position_parts(case)} parts",
        lambda case: case.workload.seq_len % _position_parts(case) == 0,
    ),
)  # fmt: skip
"""How `presets.plan` splits a model, as arithmetic."""


def obeys(rule: StackRule, case: Case, value: int) -> bool:
    """Whether a value of the rule's pin obeys a stack's rule; true where it does not apply."""
    if not _applies(rule, case):
        return True
    whole = case.quantity(rule.quantity)
    if rule.relation == "at most":
        return value * rule.over <= whole
    divides = whole % (value * rule.over) == 0
    repeats = rule.relation == "divides or repeats" and value * rule.over % whole == 0
    return divides or repeats


def _applies(rule: StackRule, case: Case) -> bool:
    if rule.unless and rule.unless in case.values:
        return False
    if rule.condition is None:
        return True
    key, sign, wanted = rule.condition
    found = case.workload.precision.compute if key == "precision" else case.values.get(key, "")
    if sign == "=":
        return str(found).lower() == wanted
    return isinstance(found, int) and found > int(wanted)


def degree_problems(case: Case, devices: int, stack: Stack) -> list[Problem]:
    """Every rule of the model and the stack that the degrees of a case break."""
    rules = [*MODEL_RULES, *(_as_rule(rule, stack) for rule in stack.rules)]
    broken = [rule for rule in rules if not rule.holds(case)]
    return [_problem(rule, rules, case, devices, stack) for rule in broken]


def stack_allows(case: Case, stack: Stack) -> bool:
    """Whether every rule of a stack is obeyed."""
    return all(obeys(rule, case, case.degree(rule.key)) for rule in stack.rules)


def restricted(pins: Pins, stack: Stack) -> list[Problem]:
    """Pins none of whose values the stack can express."""
    return [
        Problem(
            "--pin", key, "|".join(map(str, pin.values)), f"{_words(allowed)} on stack {stack.name}"
        )
        for key, pin in pins.items()
        if (allowed := stack.restricts.get(key)) and pin.values
        if not any(value in allowed for value in pin.values)
    ]


def _words(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def pin_problems(pins: Pins, case: Case, devices: int, stack: Stack) -> list[Problem]:
    """Pins none of whose values any plan of a search could have.

    Args:
        pins: sets of values; bounds are left to the search.
        case: with the single values.
        devices: of the machine.
        stack: whose rules count too.
    """
    rules = [*SEARCH_RULES, *(_as_rule(rule, stack) for rule in stack.rules)]
    found = restricted(pins, stack)
    for rule in rules:
        values = [v for v in pins[rule.key].values if v != -1] if rule.key in pins else []
        cases = [case.at(rule.key, value) for value in values if isinstance(value, int)]
        if cases and not any(rule.holds(one) for one in cases):
            found.append(_problem(rule, rules, cases[-1], devices, stack))
    batch = case.workload.global_batch_size
    problem = batch_problem(batch, case.degree("dp"), case.degree("micro_batch"))
    return [*found, *([problem] if problem else [])]


def _as_rule(rule: StackRule, stack: Stack) -> Rule:
    def words(case: Case) -> str:
        over = f" / {rule.over}" if rule.over != 1 else ""
        name, what = rule.quantity.replace("_", " "), case.quantity(rule.quantity)
        return f"{name} {what}{over} on stack {stack.name} ({rule})"

    def holds(case: Case) -> bool:
        return obeys(rule, case, case.degree(rule.key))

    return Rule(rule.key, words, holds)


def _problem(rule: Rule, rules: list[Rule], case: Case, devices: int, stack: Stack) -> Problem:
    """What a broken rule says: which value, of what, the legal ones, those that obey all rules."""
    key, most = rule.key, max(MOST_TRIED, devices)
    others = prod(case.degree(k) for k in DEGREES if k not in (key, "dp"))
    others = others if devices % others == 0 else 1
    legal = [n for n in range(1, most + 1) if rule.holds(case.at(key, n))]
    related = [other for other in rules if other.key == key]
    every = [n for n in legal if devices % (n * others) == 0
             if all(other.holds(case.at(key, n)) for other in related)]  # fmt: skip
    hints = [rule.hint(case, stack)]
    if every != legal:
        hints.append(f"with every rule, on {devices} devices: {key} in {value_set(every)}")
    found = f"{case.degree(key)} for {rule.words(case)}"
    return Problem(
        "--pin", key, found, f"{key} in {value_set(legal)}", "; ".join(filter(None, hints))
    )


def value_set(values: list[int]) -> str:
    """Legal values, for people: the first few of them."""
    shown = [str(value) for value in values[:MOST_SHOWN]]
    return "{" + ", ".join(shown + (["..."] if len(values) > MOST_SHOWN else [])) + "}"


def batch_problem(batch: int, dp: int, micro_batch: int) -> Problem | None:
    """A global batch that replicas and micro-batches do not divide."""
    unit = dp * micro_batch
    if batch % unit == 0:
        return None
    below = batch // unit * unit
    nearest = f"{below} or {below + unit}" if below else str(unit)
    legal = [n for n in range(1, max(MOST_TRIED, dp) + 1) if batch % (n * micro_batch) == 0]
    allowed = f"a multiple of dp x micro_batch = {dp} x {micro_batch}"
    hint = f"nearest {nearest}" + (f"; or dp in {value_set(legal)}" if legal else "")
    return Problem("workload", "global_batch_size", str(batch), allowed, hint)
