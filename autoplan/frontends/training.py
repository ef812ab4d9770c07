"""Forward graph -> training step: backward operators become ordinary operators of their blocks.

Each family says how its gradient is built; this module decides *which* gradients are wanted. A
frozen parameter has none, and backward stops below the first block with a trainable one, so blocks
that look alike in forward may become different variants.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from autoplan.errors import InputError, Problem
from autoplan.frontends.decoder import build_graph
from autoplan.ir.adapter import parse_lora
from autoplan.ir.graph import GRADIENT, Attrs, Block, Graph, Instance, Op, Tensor
from autoplan.ir.model import DecoderConfig
from autoplan.ir.workload import Workload
from autoplan.ops import FAMILIES

_ADAPTERS = r"(^|\.)lora_[ab]_"
"""Full names of what adapters consist of; see `decoder`."""


class _Outputs:
    """Names the outputs of a backward operator; see `ops.family.EmitResult`."""

    def __init__(self, backward: _BlockBackward, op: Op, draft: Op) -> None:
        self._backward, self._op, self._draft = backward, op, draft

    def gradients_of(self, *tensors: str) -> None:
        names = [self._backward.declare(tensor, self._op) for tensor in tensors]
        self._backward.ops.append(replace(self._draft, outputs=tuple(names)))


class _BlockBackward:
    """Backward operators of one block; implements `ops.family.Backward`."""

    def __init__(self, block: Block, trainable: frozenset[str], input_needed: bool) -> None:
        self.tensors = dict(block.tensors)
        self.ops: list[Op] = []
        self._contributions: dict[str, list[str]] = {}
        self._needed = set(trainable) | ({block.input} if input_needed else set())
        for op in block.forward:
            if self._needed.intersection(op.inputs):
                self._needed.update(op.outputs)

    def needed(self, tensor: str) -> bool:
        return tensor in self._needed

    def emit(self, op: Op, family: str, inputs: Sequence[str], attrs: Attrs = ()) -> _Outputs:
        name = f"{op.name}.{family}"
        return _Outputs(self, op, Op(name, family, tuple(inputs), (), attrs, op.group))

    def pass_on(self, tensor: str, gradient: str) -> None:
        if self.needed(tensor):
            self._contributions.setdefault(tensor, []).append(gradient)

    def declare(self, tensor: str, op: Op) -> str:
        """Declare the gradient of `tensor` that `op` contributes."""
        source = self.tensors[tensor]
        if source.role == "parameter":
            name = GRADIENT + tensor
            gradient = Tensor(name, source.dims, "parameter_gradient", "gradient")
        else:
            name = f"{GRADIENT}{tensor}@{op.name}"
            gradient = Tensor(name, source.dims, "gradient", source.dtype)
        self.tensors[name] = gradient
        if self.needed(tensor):
            self._contributions.setdefault(tensor, []).append(name)
        return name

    def collect(self, tensor: str) -> str | None:
        """The name of the summed gradient of `tensor`, adding contributions where several meet.

        The sums belong to no layer operator: they run in the home layout of the tensor's gradient.
        """
        parts = self._contributions.get(tensor)
        if not parts:
            return None
        total = parts[0]
        for index, part in enumerate(parts[1:], start=2):
            last = index == len(parts)
            name = GRADIENT + tensor + ("" if last else f"+{index}")
            self.tensors[name] = Tensor(name, self.tensors[tensor].dims, "gradient")
            self.ops.append(Op(f"sum.{name}", "add", (total, part), (name,)))
            total = name
        return total

    def rename(self, old: str, new: str) -> None:
        """Give a tensor the name that the neighbouring block expects."""
        self.tensors[new] = replace(self.tensors.pop(old), name=new)
        self.ops = [
            replace(
                op,
                inputs=tuple(new if name == old else name for name in op.inputs),
                outputs=tuple(new if name == old else name for name in op.outputs),
            )
            for op in self.ops
        ]


def derive_backward(block: Block, trainable: frozenset[str], input_needed: bool) -> Block:
    """The block with its backward operators.

    Args:
        block: forward operators only.
        trainable: local names of parameters that get a gradient.
        input_needed: whether an earlier block needs the gradient of this block's input.
    """
    backward = _BlockBackward(block, trainable, input_needed)
    if block.output:
        name = GRADIENT + block.output
        backward.tensors[name] = Tensor(name, block.tensors[block.output].dims, "gradient")
        backward.pass_on(block.output, name)
    else:
        backward.pass_on(block.forward[-1].outputs[0], "")
    for op in reversed(block.forward):
        gradients = [backward.collect(output) for output in op.outputs]
        wanted = any(backward.needed(name) for name in op.inputs)
        rule = FAMILIES[op.family].gradient
        if rule and wanted and any(gradient is not None for gradient in gradients):
            rule(op, [gradient or "" for gradient in gradients], backward)
    total = backward.collect(block.input) if input_needed and block.input else None
    if total and total != GRADIENT + block.input:
        backward.rename(total, GRADIENT + block.input)
    return replace(
        block,
        tensors=backward.tensors,
        backward=tuple(backward.ops),
        trainable=tuple(name for name in block.parameters if name in trainable),
        passes_gradient=bool(total),
    )


def step_graph(config: DecoderConfig, workload: Workload) -> Graph:
    """The training step of a model under a workload.

    Raises:
        InputError: the sequence is too long, or nothing is trainable.
    """
    p = workload.dropout
    if p is not None:
        config = replace(config, embedding_dropout=p, attention_dropout=p, residual_dropout=p)
    lora = parse_lora(workload.trainable)
    forward = build_graph(config, workload.seq_len, lora, workload.visible)
    return training_step(forward, workload.trainable)


def training_step(graph: Graph, trainable: str = "full") -> Graph:
    """The graph with backward operators; instances that differ in what is frozen get own variants.

    Args:
        graph: forward only.
        trainable: "full", adapters (`lora:…`, those that the graph was built with), or a regular
            expression searched in full parameter names.

    Raises:
        InputError: the expression is malformed or matches no parameter.
    """
    names = _trainable_names(graph, trainable)
    blocks: dict[str, Block] = {}
    variants: dict[tuple[str, frozenset[str], bool], str] = {}
    instances = []
    needed = False
    for instance in graph.instances:
        block = graph.blocks[instance.block]
        local = frozenset(n for n in block.parameters if instance.prefix + n in names)
        key = (block.name, local, needed)
        if key not in variants:
            taken = sum(1 for other in variants if other[0] == block.name)
            variant = block.name + (f"~{taken + 1}" if taken else "")
            variants[key] = variant
            blocks[variant] = replace(derive_backward(block, local, needed), name=variant)
        instances.append(Instance(variants[key], instance.prefix))
        needed = needed or bool(local)
    return replace(graph, blocks=blocks, instances=tuple(instances))


def _trainable_names(graph: Graph, trainable: str) -> frozenset[str]:
    if trainable == "full":
        return frozenset(graph.parameters)
    if parse_lora(trainable):
        trainable = _ADAPTERS
    try:
        pattern = re.compile(trainable)
    except re.error as error:
        problem = Problem(
            "workload", "trainable", f"`{trainable}`", f"a regular expression ({error})"
        )
        raise InputError(problem) from None
    names = frozenset(name for name in graph.parameters if pattern.search(name))
    if not names:
        example = ", ".join(list(graph.parameters)[:3])
        allowed = f"`full` or an expression that matches parameters such as {example}"
        raise InputError(Problem("workload", "trainable", f"`{trainable}`", allowed))
    return names
