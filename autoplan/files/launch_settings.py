"""Settings of a configuration file or command line: what is taken, what is wrong, what is left."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoplan.files.problems import Problems

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")
_FLAG = re.compile(r"--[A-Za-z]")
_ABSENT = ("", "None", "null")
Value = Any


def parse_flags(words: Sequence[str]) -> dict[str, tuple[Value, str]]:
    """`--some-flag 3` -> key `some_flag`, its value and how it stands; the last of a flag counts.

    A flag alone is True; one with several values has a list.
    """
    table: dict[str, tuple[Value, str]] = {}
    flag: list[str] = []
    for word in [*words, "--end"]:
        if not _FLAG.match(word):
            if flag:
                flag.append(word)
            continue
        if flag:
            name, *values = flag
            value: Value = True if not values else values[0] if len(values) == 1 else values
            table[key_of(name)] = (value, " ".join(flag))
        flag = word.split("=", 1)
    return table


def key_of(flag: str) -> str:
    """The key of a flag: `--some-flag` is `some_flag`."""
    return flag.lstrip("-").replace("-", "_")


@dataclass
class Settings:
    """What is set.

    Attributes:
        problems: what is wrong with values; its source is the file.
        values: key -> value: a text, or what JSON and TOML have.
        stands: key -> the setting as it stands, for people.
        taken: keys that somebody understood.
    """

    problems: Problems
    values: Mapping[str, Value]
    stands: Mapping[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def take(self, *keys: str) -> tuple[str, Value]:
        """The first of some keys that is set, and its value, or ("", None)."""
        self.taken.update(keys)
        for key in keys:
            value = self.values.get(key)
            if value is not None and value not in _ABSENT:
                return key, value
        return "", None

    def whole(self, *keys: str, least: int = 1) -> int | None:
        """A whole number, or None where none is set."""
        key, value = self.take(*keys)
        if not key:
            return None
        number = _whole(value)
        if number is None or number < least:
            self._bad(key, value, f"a whole number, at least {least}")
            return None
        return number

    def count(self, *keys: str, default: int = 1) -> int:
        """A whole number, at least 1, which has a default."""
        return self.whole(*keys) or default

    def number(self, *keys: str, default: float) -> float:
        """A number."""
        key, value = self.take(*keys)
        try:
            return float(value) if key else default
        except (TypeError, ValueError):
            self._bad(key, value, "a number")
            return default

    def flag(self, *keys: str, default: bool = False) -> bool:
        """A switch."""
        key, value = self.take(*keys)
        word = str(value).lower()
        if not key or word in (*_TRUE, *_FALSE):
            return word in _TRUE if key else default
        self._bad(key, value, "true or false")
        return default

    def text(self, *keys: str, default: str = "", allowed: Iterable[str] = ()) -> str:
        """A text, one of some where these are given; case does not matter."""
        key, value = self.take(*keys)
        if not key:
            return default
        names = {name.lower(): name for name in allowed}
        if not names:
            return str(value)
        if str(value).lower() not in names:
            self._bad(key, value, f"one of {', '.join(names.values())}")
            return default
        return names[str(value).lower()]

    def need(self, key: str, what: str) -> None:
        """A problem unless a key is set."""
        if not self.take(key)[0]:
            self.problems.add(self.shown(key), None, what)

    def shown(self, key: str) -> str:
        """The name of a setting as the file spells it."""
        return re.split(r"[ =]", self.stands.get(key, key))[0]

    def found(self, keys: Iterable[str]) -> list[str]:
        """Those of some keys that are set and not off, taken, as they stand."""
        shown = []
        for key in keys:
            value = self.take(key)[1]
            if value is not None and str(value).lower() not in _FALSE and value != []:
                shown.append(self.stands.get(key, f"{key} = {value}"))
        return shown

    def left(self, harmless: re.Pattern[str]) -> list[str]:
        """What nobody took, as it stands, but for keys that are known not to matter."""
        return [
            self.stands.get(key, f"{key} = {value}")
            for key, value in self.values.items()
            if key not in self.taken and not harmless.match(key)
        ]

    def _bad(self, key: str, value: Value, allowed: str) -> None:
        unset = isinstance(value, str) and "$" in value
        hint = "the file does not say what this variable is: write its value" if unset else ""
        self.problems.add(self.shown(key), value, allowed, hint)


def _whole(value: Value) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(str(value).replace("_", ""))
    except ValueError:
        return None
    return int(number) if number.is_integer() else None
