"""Launch scripts: what a shell script would start, as far as it can be told without running it.

Assignments (arrays too), default values, arithmetic, `if` with plain tests, line continuations and
here-documents are followed. What depends on the surroundings (other variables, the output of
commands, files, loops, functions) is not: such a value keeps its `$NAME`, and what was passed over
is listed if it sets anything.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from autoplan.files.shell_words import Statement, statements, whole_conditions, without_heredocs

_NAME = r"[A-Za-z_]\w*"
_ASSIGNMENT = re.compile(rf"({_NAME})(\+?)=(.*)", re.DOTALL)
_EXPANSION = re.compile(
    rf"\$\(\((?P<sum>.*?)\)\)|\$\{{(?P<braced>[^{{}}]*)\}}|\$(?P<plain>{_NAME}|\d)|\$\((?P<run>[^()]*)\)"
    rf"|`(?P<ticks>[^`]*)`"
)
_BRACED = re.compile(rf"(?P<name>{_NAME}|\d)(?:\[[@*]\])?(?::?[-=](?P<default>.*))?", re.DOTALL)
_SAYING = ("echo", "printf")
_DECLARING = ("export", "local", "readonly", "declare", "typeset")
_BLOCKS = {"for": "done", "while": "done", "until": "done", "case": "esac"}
_FUNCTION = re.compile(rf"function$|{_NAME}\(\)")
_DEEPEST = 4
"""How deep default values stand inside each other."""

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.floordiv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-gt": operator.gt, "-ge": operator.ge,
    "-lt": operator.lt, "-le": operator.le,
}  # fmt: skip


@dataclass
class Script:
    """What a script starts.

    Attributes:
        commands: words of every command, expanded.
        files: name -> text of the files that it writes itself.
        variables: name -> value at the end.
        unread: what was passed over although it sets something.
    """

    commands: list[list[str]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def read_script(text: str) -> Script:
    """What a script, or a single command line, would start."""
    script = Script()
    rest, files = without_heredocs(text)
    _Reader(script).run(statements(rest))
    script.files = {
        _expand_text(name, script.variables): _expand_text(body, script.variables)
        for name, body in files.items()
    }
    return script


class _Reader:
    """Follows statements in their order."""

    def __init__(self, script: Script) -> None:
        self.script, self.variables = script, script.variables

    def run(self, commands: Iterable[Statement]) -> None:
        """Take or pass over each statement, by the branches and blocks that it stands in."""
        branches: list[list[bool | None]] = []  # of each open `if`: whether an earlier one, this
        closing: list[str] = []
        truth: bool | None = None
        for statement in whole_conditions(commands):
            first, *rest = statement.words
            if closing or first in _BLOCKS:
                self._inside(closing, statement)
            elif first in ("if", "elif", "else", "fi"):
                self._branch(branches, first, rest)
            elif _FUNCTION.match(first):
                self._pass_over(statement)
            else:
                reached = all(branch[1] for branch in branches) and _reached(statement, truth)
                if reached:
                    truth = self._take(list(statement.words))
                elif not any(branch[1] is False for branch in branches) and (
                    truth is None or not statement.joined
                ):
                    self._pass_over(statement)

    def _inside(self, closing: list[str], statement: Statement) -> None:
        """A statement of a loop or a `case`, whose end pops it."""
        first = statement.words[0]
        if closing and first == closing[-1]:
            closing.pop()
        elif first in _BLOCKS:
            closing.append(_BLOCKS[first])
        else:
            self._pass_over(statement)

    def _branch(self, branches: list[list[bool | None]], word: str, rest: list[str]) -> None:
        if word == "if":
            branches.append([False, self.test(rest)])
        elif not branches:
            return
        elif word == "fi":
            branches.pop()
        else:
            before, this = branches[-1]
            earlier = None if before is None or this is None else before or this
            now = True if word == "else" else self.test(rest)
            branches[-1] = [earlier, None if earlier is None else not earlier and now]

    def _pass_over(self, statement: Statement) -> None:
        text = " ".join(statement.words)
        if statement.words[0] in _SAYING:
            return
        if any(map(_ASSIGNMENT.match, statement.words)) or " --" in f" {text}":
            self.script.unread.append(f"line {statement.line}: {' '.join(text.split())}")

    def _take(self, words: list[str]) -> bool | None:
        """Assign, or note a command; whether it succeeds, as far as it is known."""
        if words[0] in ("[", "[[", "test"):
            return self.test(words)
        if words[0][0] in "({" and words[0][-1] in ")}":
            self.run(statements(words[0][1:-1]))
            return None
        declared = words[0] in _DECLARING
        rest = words[1:] if declared else words
        while rest and (match := _ASSIGNMENT.fullmatch(rest[0])):
            self._assign(*match.groups())
            rest = rest[1:]
        if rest and not declared and rest[0] not in _SAYING:
            fields = [field for word in rest for field in self.fields(word)]
            # A quoted command is one for the shell or the host that it is handed to.
            split = [field.split() if " --" in field else [field] for field in fields]
            self.script.commands.append([word for words in split for word in words])
        return True

    def _assign(self, name: str, more: str, value: str) -> None:
        if value.startswith("(") and value.endswith(")"):
            inner = statements(value[1:-1].replace("\n", " \n"))
            words = [word for statement in inner for word in statement.words]
            text = " ".join(field for word in words for field in self.fields(word))
        else:
            text = self.text(value)
        before = f"{self.variables.get(name, '')} " if more and value.startswith("(") else ""
        before = before or (self.variables.get(name, "") if more else "")
        self.variables[name] = before + text

    def fields(self, word: str) -> list[str]:
        """The words that a word becomes: what is expanded outside quotes is split."""
        if word.startswith(("'", '"')) and not _array(word):
            return [self.text(word)]
        return self.text(word).split()

    def text(self, word: str) -> str:
        """A word without its quotes, expanded where these allow."""
        parts = re.split(r"('[^']*')", word) if '"' not in word else [word]
        plain = "".join(
            part[1:-1] if part.startswith("'") else _expand_text(part, self.variables)
            for part in parts
        )
        return re.sub(r'(?<!\\)"', "", plain).replace("\\\n", " ")

    def test(self, words: list[str]) -> bool | None:
        """Whether a test holds; None where that cannot be told."""
        inner = [word for word in words if word not in ("[", "]", "[[", "]]", "test", "then")]
        for joint, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
            if joint in inner:
                at = inner.index(joint)
                parts = (self.test(inner[:at]), self.test(inner[at + 1 :]))
                decisive = combine is any
                return decisive if decisive in parts else (None if None in parts else not decisive)
        if inner and inner[0] == "!":
            held = self.test(inner[1:])
            return None if held is None else not held
        values = [self.text(word) for word in inner]
        if any("$" in value or "`" in value for value in values):
            return None
        return _holds(values)


def _reached(statement: Statement, truth: bool | None) -> bool:
    """Whether a statement after `&&` or `||` is reached."""
    if statement.joined == "&&":
        return truth is True
    return truth is False if statement.joined == "||" else True


def _holds(values: list[str]) -> bool | None:
    match values:
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, sign, right] if sign in _COMPARISONS:
            try:
                return _COMPARISONS[sign](int(left), int(right))
            except ValueError:
                return None
    return None


def _array(word: str) -> bool:
    return "[@]" in word or "[*]" in word


def _expand_text(text: str, variables: Mapping[str, str], depth: int = 0) -> str:
    """A text with every variable that has a value replaced by it.

    A variable that is set from itself, and had no value before, is not followed for ever.
    """
    if depth > _DEEPEST:
        return text

    def value(match: re.Match[str]) -> str:
        if match["sum"] is not None:
            number = _sum(_expand_text(match["sum"], variables, depth + 1), variables)
            return match[0] if number is None else str(number)
        if match["plain"]:
            return variables.get(match["plain"], match[0])
        braced = _BRACED.fullmatch(match["braced"] or "")
        if braced is None:
            return match[0]
        known = variables.get(braced["name"])
        if known:
            return known
        if braced["default"] is not None:
            return _expand_text(braced["default"].strip("\"'"), variables, depth + 1)
        return match[0] if known is None else known

    for _ in range(_DEEPEST):
        expanded = _EXPANSION.sub(value, text)
        if expanded == text:
            break
        text = expanded
    return text


def _sum(text: str, variables: Mapping[str, str]) -> int | None:
    """The value of an arithmetic expression, or None."""

    def evaluate(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name):
                return int(variables[name])
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -evaluate(operand)
            case ast.BinOp(left=left, op=sign, right=right):
                return _OPERATORS[type(sign)](evaluate(left), evaluate(right))
        raise ValueError

    try:
        return evaluate(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None
