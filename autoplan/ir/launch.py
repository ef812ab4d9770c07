"""A Launch: how somebody else's software was told to train, in our words.

It holds what a configuration decides and nothing that a machine would have to be known for; what
the software would fill in by itself is filled in, as it would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.ir.model import DecoderConfig
from autoplan.ir.record import Shape


@dataclass(frozen=True, slots=True)
class Launch:
    """A configuration.

    Attributes:
        source: the file.
        stack: which software it is for: a name of a stack profile.
        name: the model as the configuration calls it, or "".
        shape: what it says of the model.
        model: the model, where the configuration describes all of it.
        pins: decision -> value, complete but for what follows from the number of devices.
        options: `global_batch_size`, `seq_len`, `precision`, `optimizer`, where given.
        per_replica: sequences of a step of one replica, where the batch is given so, or None.
        devices: that are started, or None.
        per_node: of them on a node, or None.
        unread: settings that were not understood, as they stand.
        unpriced: settings that were understood and matter, but are not part of a prediction.
    """

    source: str
    stack: str
    name: str = ""
    shape: Shape = Shape()
    model: DecoderConfig | None = None
    pins: Mapping[str, int | bool | str | tuple[int, ...]] = field(default_factory=dict)
    options: Mapping[str, str | int | float] = field(default_factory=dict)
    per_replica: int | None = None
    devices: int | None = None
    per_node: int | None = None
    unread: tuple[str, ...] = ()
    unpriced: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = " ".join(f"{key}={value}" for key, value in self.pins.items())
        return f"{self.source} ({self.stack}): {self.name or self.model or 'a model'}, {words}"
