"""The text of a shell script -> its simple commands, nothing expanded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_]\w*)\1")


@dataclass(frozen=True, slots=True)
class Statement:
    """A simple command: its line, its words as they stand, and what joins it to the one before."""

    line: int
    words: tuple[str, ...]
    joined: str


def without_heredocs(text: str) -> tuple[str, dict[str, str]]:
    """A script without the bodies of its here-documents, and the files that these write.

    Lines keep their numbers.
    """
    kept: list[str] = []
    files: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        match = _HEREDOC.search(line)
        if not match or line.lstrip().startswith("#"):
            kept.append(line)
            continue
        body = []
        for inner in lines:
            if inner.strip() == match[2]:
                break
            body.append(inner)
        target = re.search(r">\s*(\S+)", line.replace(match[0], ""))
        if target:
            files[target[1].strip("\"'")] = "\n".join(body)
        kept += [""] * (len(body) + 2)
    return "\n".join(kept), files


def statements(text: str) -> Iterator[Statement]:
    """Simple commands; an array is one word, and so is whatever is quoted."""
    scanner = _Scanner(text)
    words: list[str] = []
    begin, joined = 1, ""
    for word, line in scanner.words():
        if word in ("\n", ";", "&&", "||", "|", "&"):
            if words:
                yield Statement(begin, tuple(words), joined)
                words = []
                joined = ""
            joined = word if word in ("&&", "||", "|") else ("" if word != "\n" else joined)
            continue
        begin = begin if words else line
        words.append(word)
    if words:
        yield Statement(begin, tuple(words), joined)


def whole_conditions(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Everything between `if` and `then` as one statement; `then`, `do` and `else` taken off."""
    condition: Statement | None = None
    for statement in statements:
        first, *rest = statement.words
        if first == "then":
            if condition:
                yield condition
            condition = None
        if first == "else":
            yield Statement(statement.line, ("else",), "")
        if first in ("then", "do", "else"):
            if rest:
                yield Statement(statement.line, tuple(rest), "")
        elif condition:
            words = (*condition.words, statement.joined, *statement.words)
            condition = Statement(condition.line, words, "")
        elif first in ("if", "elif"):
            condition = statement
        else:
            yield statement


class _Scanner:
    """Characters -> words and separators."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.line = text.replace("\\\r\n", "\\\n"), 0, 1

    def words(self) -> Iterator[tuple[str, int]]:
        testing = False
        while self.at < len(self.text):
            char, pair = self.text[self.at], self.text[self.at : self.at + 2]
            if pair == "\\\n":
                self.at, self.line = self.at + 2, self.line + 1
            elif char == "\n":
                yield "\n", self.line
                self.at, self.line = self.at + 1, self.line + 1
            elif char.isspace():
                self.at += 1
            elif char == "#":
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            elif pair in ("&&", "||") and not testing:
                yield pair, self.line
                self.at += 2
            elif char == ";" or (char in "|&" and not testing):
                yield char, self.line
                self.at += 1
            else:
                line = self.line
                word = self._word(testing)
                testing = word == "[[" or (testing and word != "]]")
                yield word, line

    def _word(self, testing: bool) -> str:
        start, depth = self.at, 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\":
                self._skip(2)
            elif char in "\"'`":
                self._quoted(char)
            elif char in "({":
                depth += 1
                self._skip(1)
            elif char in ")}" and depth:
                depth -= 1
                self._skip(1)
            elif char == "#" and depth and self.text[self.at - 1].isspace():
                end = self.text.find("\n", self.at)
                self.at = end if end >= 0 else len(self.text)
            elif not depth and (char.isspace() or char == ";" or (char in "|&" and not testing)):
                break
            else:
                self._skip(1)
        return self.text[start : self.at]

    def _quoted(self, quote: str) -> None:
        self._skip(1)
        while self.at < len(self.text) and self.text[self.at] != quote:
            self._skip(2 if self.text[self.at] == "\\" and quote != "'" else 1)
        self._skip(1)

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count
