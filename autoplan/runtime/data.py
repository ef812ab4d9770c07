"""Where tokens come from: any text file as bytes, or synthetic tokens; the same for every plan.

A batch is a function of the step alone. Some targets are masked, unevenly, so that micro-batches
and ranks have unequal numbers of valid tokens: a mean over the wrong tokens cannot go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from autoplan.errors import InputError, Problem
from autoplan.runtime.random import hash_bits, hash_key

MASKED = -100
"""Target of a position that the loss ignores. Source: torch's cross_entropy, `ignore_index`."""
MOST_MASKED = 0.4
"""Largest share of masked targets of a synthetic sequence; the mean is half of it."""

_BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")


@dataclass(frozen=True, slots=True)
class Shape:
    """The extents of a batch.

    Attributes:
        sequences: of the global batch.
        seq_len: positions per sequence.
        vocab: number of token ids.
    """

    sequences: int
    seq_len: int
    vocab: int


Batch = tuple[Tensor, Tensor, int]
"""(ids[sequences s], targets[sequences s], number of valid targets, at least 1); int64."""


class Batches(Protocol):
    """What a run reads."""

    @property
    def shape(self) -> Shape:
        """Of every batch."""

    def batch(self, step: int) -> Batch:
        """The global batch of a step."""

    def more(self, step: int) -> Mapping[str, Tensor]:
        """Feeds of a step beside ids and targets, each [sequences s]."""


class SyntheticBatches:
    """Tokens that are hashes of their place, of which about a fifth of the targets is masked."""

    def __init__(self, shape: Shape, seed: int) -> None:
        """Draw from the seed.

        Args:
            shape: of every batch.
            seed: of the run.
        """
        self.shape = shape
        self._seed = seed

    def batch(self, step: int) -> Batch:
        """The global batch of a step."""
        b, s = self.shape.sequences, self.shape.seq_len
        places = torch.arange(b * (s + 1)).view(b, s + 1)
        tokens = self._bits(places, f"tokens/{step}") % self.shape.vocab
        shares = self._bits(places[:, :1], f"shares/{step}") % 1000 * (MOST_MASKED / 1000)
        masked = self._bits(places[:, 1:], f"mask/{step}") % 1000 < shares * 1000
        return _batch(tokens, masked)

    def more(self, step: int) -> Mapping[str, Tensor]:
        """Nothing else: a sequence is one document."""
        return {}

    def _bits(self, places: Tensor, stream: str) -> Tensor:
        """32 random bits per place, non-negative."""
        return hash_bits(places, hash_key(f"{self._seed}/{stream}")) >> 32 & 0xFFFFFFFF


class TextBatches:
    """Consecutive windows of a text, byte by byte; documents end at blank lines.

    What a document's end says about the next one's beginning is not learned: the blank line and the
    first byte after it are no targets.
    """

    def __init__(self, shape: Shape, text: bytes) -> None:
        """Cut the text.

        Args:
            shape: of every batch; with fewer than 256 ids a token is the byte modulo their number.
            text: not empty; reading wraps around at its end.

        Raises:
            InputError: the text has no byte that may be a target.
        """
        self.shape = shape
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else None
        self._masked = torch.zeros(len(text), dtype=torch.bool)
        self._masked[:1] = True
        for blank in _BLANK_LINES.finditer(text):
            self._masked[blank.start() + 1 : blank.end() + 1] = True
        if bool(self._masked.all()):
            found = f"{len(text)} bytes, all of them blank"
            raise InputError(Problem("--data", "", found, "a file with some text in it"))

    def batch(self, step: int) -> Batch:
        """The global batch of a step: sequence i of step t is window t * sequences + i."""
        assert self._bytes is not None
        b, s = self.shape.sequences, self.shape.seq_len
        starts = (step * b + torch.arange(b)) * s
        places = (starts[:, None] + torch.arange(s + 1)) % len(self._bytes)
        tokens = self._bytes[places].to(torch.int64) % self.shape.vocab
        return _batch(tokens, self._masked[places[:, 1:]])

    def more(self, step: int) -> Mapping[str, Tensor]:
        """Nothing else: ends of documents are no targets, yet attention looks across them."""
        return {}


def open_batches(shape: Shape, seed: int, path: Path | None) -> Batches:
    """The batches of a run.

    Args:
        shape: of every batch.
        seed: of the run; a text does not depend on it.
        path: any file, or None for synthetic tokens.

    Raises:
        InputError: the file cannot be read or has no text in it.
    """
    if path is None:
        return SyntheticBatches(shape, seed)
    try:
        return TextBatches(shape, path.read_bytes())
    except OSError as error:
        found = f"{path} ({error.strerror})"
        raise InputError(Problem("--data", "", found, "a file that can be read")) from None


def _batch(tokens: Tensor, masked: Tensor) -> Batch:
    """Ids and shifted, masked targets of windows of one token more than a sequence."""
    targets = tokens[:, 1:].masked_fill(masked, MASKED)
    # A batch without a valid target has loss 0 rather than 0 / 0.
    return tokens[:, :-1].contiguous(), targets, max(1, int((~masked).sum()))
