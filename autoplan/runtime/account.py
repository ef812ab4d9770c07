"""Counting, from the real tensors, the memory that a rank's slots and registers keep alive.

The count is the definition in `ir.program`: after each instruction, the bytes of the distinct
buffers that any live slot or register refers to, its outputs present and its frees not yet done.
It knows nothing of shapes, aliases or frees that a Program promises; so where it equals the account
made from the Program alone, the promises hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor

Place = tuple[int, int]
"""Index of an action and of an instruction in it (or -1)."""


class Account(Protocol):
    """What the interpreter tells about its values.

    Attributes:
        peak: largest count since `restart`, in bytes.
        peak_at: where it was first reached.
        history: the count at every mark since `restart`, in bytes.
    """

    peak: int
    peak_at: Place
    history: list[int]

    def hold(self, tensor: Tensor) -> None:
        """One more slot or register refers to the tensor's buffer."""

    def drop(self, tensor: Tensor) -> None:
        """One fewer does."""

    def mark(self, place: Place, live: Iterable[Tensor | None]) -> None:
        """An instruction is done; `live` are the values of all slots and registers."""

    def restart(self) -> None:
        """Forget the peak, as a step begins."""


class _Peak:
    """The largest count and where it was."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.peak = 0
        self.peak_at: Place = (-1, -1)
        self.history: list[int] = []

    def _note(self, place: Place, nbytes: int) -> None:
        self.history.append(nbytes)
        if nbytes > self.peak:
            self.peak, self.peak_at = nbytes, place


class RunningAccount(_Peak):
    """Counts references to each buffer as they come and go: about 0.1 us an instruction."""

    def __init__(self) -> None:
        super().__init__()
        self._current = 0
        self._references: dict[int, int] = {}

    def hold(self, tensor: Tensor) -> None:
        """See `Account.hold`."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        references = self._references.get(address, 0)
        if not references:
            self._current += storage.nbytes()
        self._references[address] = references + 1

    def drop(self, tensor: Tensor) -> None:
        """See `Account.drop`."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        references = self._references[address] - 1
        if references:
            self._references[address] = references
        else:
            # A freed buffer's address may come back as another buffer, so it must leave the table.
            del self._references[address]
            self._current -= storage.nbytes()

    def mark(self, place: Place, live: Iterable[Tensor | None]) -> None:
        """See `Account.mark`; needs no look at `live`."""
        self._note(place, self._current)


class SweepAccount(_Peak):
    """Looks at every live value after every instruction: exact by construction, and slow."""

    def hold(self, tensor: Tensor) -> None:
        """See `Account.hold`; nothing to remember."""

    def drop(self, tensor: Tensor) -> None:
        """See `Account.drop`; nothing to remember."""

    def mark(self, place: Place, live: Iterable[Tensor | None]) -> None:
        """See `Account.mark`."""
        buffers = {
            storage.data_ptr(): storage.nbytes()
            for storage in (tensor.untyped_storage() for tensor in live if tensor is not None)
        }
        self._note(place, sum(buffers.values()))
