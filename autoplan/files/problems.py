"""How every door turns what pydantic and its own checks find into `Problem`s, all at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from autoplan.errors import InputError, Problem, nearest

Read = TypeVar("Read")
Schema = TypeVar("Schema", bound=BaseModel)

_LONGEST_FOUND = 60

_ALLOWED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of ordinary size",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "greater_than": "a number > {gt}",
    "greater_than_equal": "a number >= {ge}",
    "less_than": "a number < {lt}",
    "less_than_equal": "a number <= {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
    "string_pattern_mismatch": "a text like {pattern}",
    "string_too_short": "a text that is not empty",
    "value_error": "{error}",
}
"""pydantic's error type -> what would have been allowed."""


class Strict(BaseModel):
    """A file's object: no unknown fields, no conversions, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def one_of(names: Iterable[str]) -> AfterValidator:
    """A text field that takes one of some names."""
    allowed = tuple(names)

    def check(name: str) -> str:
        if name not in allowed:
            raise PydanticCustomError("name", f"one of {', '.join(allowed)}")
        return name

    return AfterValidator(check)


@dataclass
class Problems:
    """Problems of one source, collected until `check`."""

    source: str
    found: list[Problem] = field(default_factory=list)

    def add(self, where: str, found: object, allowed: str, hint: str = "") -> None:
        """Record one problem; `found` is shown as JSON."""
        self.found.append(Problem(self.source, where, shown(found), allowed, hint))

    def attempt(self, read: Callable[[], Read]) -> Read | None:
        """The result of `read`, or None after recording what it found wrong."""
        try:
            return read()
        except InputError as error:
            self.found.extend(error.problems)
            return None

    def check(self) -> None:
        """Raise InputError with everything recorded, if anything was."""
        if self.found:
            raise InputError(self.found)


def shown(value: object) -> str:
    """A value as short JSON text."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _LONGEST_FOUND else text[: _LONGEST_FOUND - 3] + "..."


def validate(model: type[Schema], document: object, source: str, path: str = "$") -> Schema:
    """The document as `model`.

    Args:
        model: the schema.
        document: parsed JSON.
        source: file or flag, for the messages.
        path: path of `document` inside the source.

    Raises:
        InputError: with every problem; a misspelt field is reported once, with its correction.
    """
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InputError(tuple(_problems(error, model, document, source, path))) from None


def _problems(
    error: ValidationError, model: type[BaseModel], document: object, source: str, path: str
) -> Iterable[Problem]:
    details = error.errors(include_url=False)
    fields = {d["loc"]: _keys(_schema_at(model, d["loc"][:-1]))
              for d in details if d["type"] == "extra_forbidden"}  # fmt: skip
    missing = {d["loc"] for d in details if d["type"] == "missing"}
    meant = {loc: _meant(loc, known, missing) for loc, known in fields.items()}
    for detail in details:
        loc = detail["loc"]
        where = _where(loc, document, path)
        if detail["type"] == "extra_forbidden":
            known = ", ".join(fields[loc])
            yield Problem(source, where, "an unknown field", f"one of {known}", meant[loc][1])
        elif detail["type"] != "missing":
            yield Problem(source, where, shown(detail["input"]), _allowed(detail))
        elif loc not in {target for target, _ in meant.values()}:
            yield Problem(source, where, "nothing", "this field is required")


def _allowed(detail: ErrorDetails) -> str:
    template = _ALLOWED.get(detail["type"])
    return template.format(**detail.get("ctx", {})) if template else detail["msg"]


def _meant(
    loc: tuple[int | str, ...], known: Sequence[str], missing: set[tuple[int | str, ...]]
) -> tuple[tuple[int | str, ...], str]:
    """Where a misspelt field should stand, and the hint: missing fields are likelier."""
    absent = [name for name in known if (*loc[:-1], name) in missing]
    for choice in (absent, known):
        hint = nearest(str(loc[-1]), choice)
        if hint:
            return (*loc[:-1], hint.split("`")[1]), hint
    return loc, ""


def _where(loc: Sequence[int | str], document: object, path: str) -> str:
    """JSON path of an error, as far as the document itself reaches."""
    value: Any = document
    for part in loc:
        if part == "[key]":
            break
        if isinstance(value, Mapping):
            path, value = f"{path}.{part}", value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int):
            path, value = f"{path}[{part}]", value[part] if part < len(value) else None
        else:
            break
    return path


def _keys(schema: type[BaseModel]) -> tuple[str, ...]:
    return tuple(info.alias or name for name, info in schema.model_fields.items())


def _schema_at(model: type[BaseModel], loc: Sequence[int | str]) -> type[BaseModel]:
    """The schema of the object at `loc`."""
    current: Any = model
    for part in loc:
        if isinstance(current, type) and issubclass(current, BaseModel):
            current = current.model_fields[str(part)].annotation
        else:
            current = get_args(current)[-1]
        current = _unwrapped(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else Strict


def _unwrapped(annotation: Any) -> Any:
    """The annotation without `Annotated` and `| None`."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        annotation = next(a for a in get_args(annotation) if a is not type(None))
    return annotation
