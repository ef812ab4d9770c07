"""Optimizers as declarations: the update that each kind of parameter takes, and its states.

An update is an operator of the step; what it consists of stands in `ops.updating`, its kernels in
`runtime.kernels`. Each needs both, so these tables are no data files: a new row without an operator
could be neither priced nor executed.

Kinds of parameter: a `matrix` is the weight of a product inside the model; a `table` has a row per
token or position (embeddings, the output head); a `vector` is everything else (norms, biases). A
matrix is rows (its out dims, flattened) by columns (its in dims, flattened).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BLOCK_OF_8_BITS = 256
"""Elements that share a scale. Source: Dettmers et al. 2022, 8-bit Optimizers; bitsandbytes."""
KINDS = ("matrix", "table", "vector")


@dataclass(frozen=True, slots=True)
class State:
    """What an update remembers of a parameter.

    Attributes:
        name: unique in its update.
        over: it has a value for each of the parameter's `elements`, `rows` or `columns`, or for
            each of the `blocks` of `BLOCK_OF_8_BITS` elements of a shard.
        dtype: `optimizer`, that of the precision bundle, or a dtype that the update insists on.
    """

    name: str
    over: str = "elements"
    dtype: str = "optimizer"


@dataclass(frozen=True, slots=True)
class Update:
    """An operator that updates one parameter.

    Attributes:
        states: what it remembers.
        hyper: names of its hyper-parameters.
        executed: whether the runtime has its kernel; if not, it can only be priced.
    """

    states: tuple[State, ...]
    hyper: tuple[str, ...]
    executed: bool = True


_ADAM = ("lr", "beta1", "beta2", "eps", "weight_decay")
_FACTORED = ("lr", "decay", "threshold", "eps", "weight_decay")

UPDATES: Mapping[str, Update] = {
    "adamw": Update((State("exp_avg"), State("exp_avg_sq")), _ADAM),
    "adamw_8bit": Update(
        (
            State("exp_avg", dtype="int8"), State("exp_avg_scale", "blocks", "fp32"),
            State("exp_avg_sq", dtype="int8"), State("exp_avg_sq_scale", "blocks", "fp32"),
        ),
        _ADAM, executed=False,
    ),
    "adafactor": Update((State("rows", "rows"), State("columns", "columns")), _FACTORED),
    "adafactor_whole": Update((State("squares"),), _FACTORED),
    "muon": Update((State("momentum"),), ("lr", "momentum", "weight_decay")),
    "lion": Update((State("exp_avg"),), ("lr", "beta1", "beta2", "weight_decay")),
    "sgd": Update((State("momentum"),), ("lr", "momentum", "weight_decay")),
}  # fmt: skip
"""Update -> what it is. `adafactor_whole` is Adafactor where there is nothing to factor."""


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """An optimizer: an update per kind of parameter.

    Attributes:
        matrix, table, vector: keys of `UPDATES`.
        hyper: defaults of every hyper-parameter that these updates have.
        continuous: whether a gradient that is nothing but rounding makes a small step; if not, two
            runs drift apart where gradients vanish (a key bias before softmax).
    """

    matrix: str
    table: str
    vector: str
    hyper: Mapping[str, float]
    continuous: bool = True

    def update(self, kind: str) -> str:
        """The update of a kind of parameter."""
        return str(getattr(self, kind))

    @property
    def executed(self) -> bool:
        """Whether the runtime has all its kernels."""
        return all(UPDATES[self.update(kind)].executed for kind in KINDS)


_ADAMW = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}

OPTIMIZERS: Mapping[str, OptimizerRule] = {
    "adamw": OptimizerRule("adamw", "adamw", "adamw", _ADAMW),
    # Embeddings and small tensors keep 32 bits. Source: Dettmers et al. 2022, section 2.3;
    # bitsandbytes, `min_8bit_size`.
    "adamw_8bit": OptimizerRule("adamw_8bit", "adamw", "adamw", _ADAMW),
    # Source: Shazeer and Stern 2018, algorithms 4 to 6.
    "adafactor": OptimizerRule(
        "adafactor", "adafactor", "adafactor_whole",
        {"lr": 1e-2, "decay": 0.8, "threshold": 1.0, "eps": 1e-3, "weight_decay": 0.0},
        continuous=False,
    ),
    # AdamW for what is no hidden matrix. Source: Jordan et al. 2024 (Muon); Liu et al. 2025 (Muon
    # is scalable), whose scaling lets both parts share one learning rate.
    "muon": OptimizerRule("muon", "adamw", "adamw", {**_ADAMW, "momentum": 0.95}),
    # Source: Chen et al. 2023, section 5: rates 3 to 10 times below AdamW's, decay as much above.
    "lion": OptimizerRule(
        "lion", "lion", "lion",
        {"lr": 3e-5, "beta1": 0.9, "beta2": 0.99, "weight_decay": 1.0}, continuous=False,
    ),
    "sgd": OptimizerRule(
        "sgd", "sgd", "sgd", {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.0}
    ),
}  # fmt: skip
"""Optimizer -> its updates and defaults."""
