"""Laws: the reference equals a model written by hand without the graph, equals the kernels of the
training step run on one rank, and its optimizers equal torch's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from autoplan.frontends import build_graph, training_step
from autoplan.ir.graph import Graph
from autoplan.ir.model import DecoderConfig, RopeScaling
from autoplan.ir.optimizer import KINDS, UPDATES
from autoplan.ir.program import Instr, Register
from autoplan.ir.workload import Optimizer
from autoplan.ops.updating import Form
from autoplan.runtime.data import Shape, SyntheticBatches
from autoplan.runtime.kernels import Place, StepContext, link
from autoplan.runtime.random import initial
from autoplan.runtime.reference import ReferenceBatch, reference_step
from autoplan.runtime.reference_optimizer import Values, reference_update

SEQ = 6
LLAMA = DecoderConfig(
    "llama", "tiny-llama", hidden=8, layers=2, heads=4, kv_heads=2, head_dim=4, ffn=12, vocab=16,
    max_positions=64, rope_scaling=RopeScaling(8.0, 1.0, 4.0, 32), rope_theta=100.0,
    initializer_range=0.4,
)  # fmt: skip
GPT2 = DecoderConfig(
    "gpt2", "tiny-gpt2", hidden=8, layers=2, heads=2, kv_heads=2, head_dim=4, ffn=12, vocab=16,
    max_positions=8, norm="layer_norm", activation="gelu_tanh", gated=False, qkv_bias=True,
    output_bias=True, mlp_bias=True, rope_theta=None, learned_positions=True, tied_embeddings=True,
    embedding_dropout=0.2, attention_dropout=0.2, residual_dropout=0.2, initializer_range=0.4,
)  # fmt: skip
GEMMA = DecoderConfig(
    "gemma", "tiny-gemma", hidden=8, layers=2, heads=2, kv_heads=1, head_dim=6, ffn=12, vocab=16,
    max_positions=64, norm_offset=1.0, activation="gelu_tanh", tied_embeddings=True,
    embedding_scale=8**0.5, initializer_range=0.4,
)  # fmt: skip

QWEN3 = replace(
    LLAMA, family="qwen3", name="tiny-qwen3", qkv_bias=True, qk_norm=True, sliding_window=3,
    rope_scaling=None,
)  # fmt: skip
PHI = replace(
    GPT2, family="phi", name="tiny-phi", heads=4, kv_heads=2, learned_positions=False,
    rope_theta=100.0, rotary_dim=2, qk_norm=True, parallel_residual=True, shared_norm=True,
    tied_embeddings=False, head_bias=True, residual_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
OPT = replace(GPT2, family="opt", name="tiny-opt", activation="relu", position_offset=2)
NEOX = replace(
    PHI, family="gpt_neox", name="tiny-neox", shared_norm=False, head_bias=False, qk_norm=False,
    residual_dropout=0.2, attention_dropout=0.2, sliding_window=4,
)  # fmt: skip


def parameters_of(graph: Graph, dtype=torch.float64):
    table = {}
    for name, (block, local) in graph.parameters.items():
        shape = graph.shape(block, local)
        whole = [slice(0, n) for n in shape]
        kind = graph.init[local]
        value = initial(name, kind, shape, whole, 0, dtype)
        if kind[0] == "constant":  # a 0 or 1 would hide what it is multiplied with
            value = value + initial(name, ("normal", 0.3), shape, whole, 1, dtype)
        table[name] = value
    return table


def batch_of(config, sequences=4, step=2, **more):
    ids, targets, count = SyntheticBatches(Shape(sequences, SEQ, config.vocab), 0).batch(step)
    return ReferenceBatch(ids, targets, count, step, seed=5, **more)


def assert_close(found, expected, limit=1e-12):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1e-3, float(value.abs().max()))
        assert float((found[name] - value).abs().max()) <= limit * scale, name


def llama_by_hand(p, ids, targets, count):
    """A Llama as a newcomer would write it: one head at a time, positions one by one."""

    def norm(x, w):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * w

    def rotated(x):  # [b, s, 4], head width 4: two pairs of wavelengths 2 pi and 20 pi
        rows = []
        for position in range(SEQ):
            a = x[:, position]
            # 32 positions are 5.1 and 0.51 turns: the first is kept, the second slowed by 8.
            angles = torch.tensor([position * 1.0, position * 0.1 / 8], dtype=x.dtype)
            c, s = angles.cos(), angles.sin()
            rows.append(torch.cat((a[:, :2] * c - a[:, 2:] * s, a[:, 2:] * c + a[:, :2] * s), -1))
        return torch.stack(rows, 1)

    x = p["embedding"][ids]
    for layer in ("layers.0.", "layers.1."):
        n = norm(x, p[layer + "attention_norm"])
        for g in range(2):
            k, v = n @ p[layer + "w_k"][g].T, n @ p[layer + "w_v"][g].T
            for r in range(2):
                q = n @ p[layer + "w_q"][g, r].T
                scores = rotated(q) @ rotated(k).transpose(1, 2) / 2
                scores = scores + torch.full((SEQ, SEQ), -torch.inf, dtype=x.dtype).triu(1)
                x = x + scores.softmax(-1) @ v @ p[layer + "w_o"][:, g, r].T
        n = norm(x, p[layer + "mlp_norm"])
        gate = F.silu(n @ p[layer + "w_gate"].T)
        x = x + (gate * (n @ p[layer + "w_up"].T)) @ p[layer + "w_down"].T
    logits = norm(x, p["final_norm"]) @ p["head"].T
    chances = logits.softmax(-1)
    losses = [
        -chances[i, j, targets[i, j]].log()
        for i in range(len(ids))
        for j in range(SEQ)
        if targets[i, j] != -100
    ]
    return torch.stack(losses).sum() / count


def test_reference_equals_a_llama_written_by_hand():
    graph = training_step(build_graph(LLAMA, SEQ))
    parameters, batch = parameters_of(graph), batch_of(LLAMA)
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    expected = llama_by_hand(leaves, batch.ids, batch.targets, batch.count)
    expected.backward()
    loss, gradients = reference_step(graph, parameters, batch)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-13)
    assert_close(gradients, {name: leaf.grad for name, leaf in leaves.items()})


DTYPES = {"index": "int64"}


def run_block(block, ops, values, context):
    """Run operators of a block by their kernels on whole tensors."""
    for op in ops:
        operands = [values[name] for name in op.inputs]
        names = {torch.float64: "fp64", torch.int64: "int64"}
        registers = [
            Register(n, tuple(values[n].shape), names[values[n].dtype], "") for n in op.inputs
        ]
        sizes = dict(
            pair
            for name in values
            if name in block.tensors
            for pair in zip(block.tensors[name].dims, values[name].shape, strict=True)
        ) | {"c": 2}
        for name in op.outputs:
            shape = tuple(sizes[dim] for dim in block.tensors[name].dims)
            registers.append(Register(name, shape, "fp64", ""))
        n = len(operands)
        outs = tuple(range(n, n + len(op.outputs)))
        instr = Instr(op.family, tuple(range(n)), outs, op.attrs, (-1,) * len(outs))
        results = link(instr, registers, Place((), ()))(context, operands)
        values.update(zip(op.outputs, results, strict=True))


def step_by_kernels(graph, parameters, batch):
    """The training step, forward and backward operators, on one rank in one micro-batch."""
    feeds = {
        "ids": batch.ids,
        "targets": batch.targets,
        "positions": torch.arange(SEQ).expand(batch.ids.shape).contiguous(),
        "count": torch.tensor(float(batch.count), dtype=torch.float64),
    }
    saved, x = [], None
    for index, instance in enumerate(graph.instances):
        block = graph.blocks[instance.block]
        values = dict(feeds)
        values |= {n: parameters[instance.prefix + n] for n in block.parameters}
        if block.input:
            values[block.input] = x
        context = StepContext(batch.step, batch.seed, 0, index, len(batch.ids))
        run_block(block, block.forward, values, context)
        x = values.get(block.output)
        saved.append((block, instance, values, context))
    loss, gradients, dx = values["loss"], {}, None
    for block, instance, values, context in reversed(saved):
        if block.output:
            values["d." + block.output] = dx
        run_block(block, block.backward, values, context)
        dx = values.get("d." + block.input)
        for local in block.trainable:
            name = instance.prefix + local
            gradients[name] = gradients.get(name, 0) + values["d." + local]
    return loss, gradients


EVERY = [LLAMA, GPT2, GEMMA, QWEN3, PHI, OPT, NEOX]


@pytest.mark.parametrize("config", EVERY, ids=lambda c: c.name)
def test_reference_equals_the_kernels_of_the_training_step(config):
    graph = training_step(build_graph(config, SEQ))
    parameters, batch = parameters_of(graph), batch_of(config)
    loss, gradients = reference_step(graph, parameters, batch)
    by_kernels, found = step_by_kernels(graph, parameters, batch)
    assert float(by_kernels) == pytest.approx(float(loss), rel=1e-13)
    assert_close(found, gradients)


def test_dropout_changes_with_step_and_seed():
    graph = training_step(build_graph(GPT2, SEQ))
    parameters, batch = parameters_of(graph), batch_of(GPT2)
    losses = {
        float(reference_step(graph, parameters, b)[0])
        for b in (batch, replace(batch, step=3), replace(batch, seed=6))
    }
    assert len(losses) == 3


@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=lambda c: c.name)
@pytest.mark.parametrize("width", [1, 3])
def test_passes_of_a_few_sequences_add_up(config, width):
    graph = training_step(build_graph(config, SEQ))
    parameters = parameters_of(graph)
    loss, gradients = reference_step(graph, parameters, batch_of(config))
    again, parts = reference_step(graph, parameters, batch_of(config, sequences_at_once=width))
    assert float(again) == pytest.approx(float(loss), rel=1e-13)
    assert_close(parts, gradients)


def test_frozen_parameters_have_no_gradient():
    graph = training_step(build_graph(LLAMA, SEQ), r"layers\.1\.")
    parameters = parameters_of(graph)
    _, gradients = reference_step(graph, parameters, batch_of(LLAMA))
    assert gradients.keys() == {name for name in parameters if name.startswith("layers.1.")}
    _, whole = reference_step(training_step(build_graph(LLAMA, SEQ)), parameters, batch_of(LLAMA))
    assert_close(gradients, {name: whole[name] for name in gradients})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_stays_near(dtype):
    graph = training_step(build_graph(LLAMA, SEQ))
    exact, _ = reference_step(graph, parameters_of(graph), batch_of(LLAMA))
    loss, gradients = reference_step(graph, parameters_of(graph, dtype), batch_of(LLAMA))
    limit = 1e-5 if dtype == torch.float32 else 0.05
    assert float(loss) == pytest.approx(float(exact), rel=limit)
    assert {g.dtype for g in gradients.values()} == {dtype}


ADAMW = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
MUON = {**ADAMW, "momentum": 0.95}


def torch_optimizer(name, hyper, trained):
    """The same optimizer of the library."""
    rest = {k: hyper[k] for k in ("lr", "weight_decay")}
    if name == "adamw":
        betas = (hyper["beta1"], hyper["beta2"])
        return torch.optim.AdamW(trained, betas=betas, eps=hyper["eps"], foreach=False, **rest)
    return torch.optim.SGD(trained, momentum=hyper["momentum"], foreach=False, **rest)


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize(("name", "hyper"), [("adamw", ADAMW), ("sgd", SGD)])
def test_updates_equal_those_of_torch(name, hyper, clip):
    torch.manual_seed(0)
    parameters = {n: torch.randn(3, 4, dtype=torch.float64) for n in ("a", "b", "frozen")}
    leaves = {n: p.clone().requires_grad_() for n, p in parameters.items()}
    trained = [leaves["a"], leaves["b"]]
    theirs = torch_optimizer(name, hyper, trained)
    optimizer = Optimizer(name, hyper, clip)
    (states,) = {u.states for u in (UPDATES[optimizer.rule.update(kind)] for kind in KINDS)}
    values = Values(parameters, {
        n: {s.name: torch.zeros(3, 4, dtype=torch.float64) for s in states} for n in ("a", "b")
    })  # fmt: skip
    seen = dict.fromkeys(parameters, Form("matrix", 1))
    for step in range(3):
        gradients = {n: torch.randn(3, 4, dtype=torch.float64) for n in ("a", "b")}
        for n, gradient in gradients.items():
            leaves[n].grad = gradient.clone()
        if clip:
            torch.nn.utils.clip_grad_norm_(trained, clip)
        theirs.step()
        values = reference_update(optimizer, seen, values, gradients, step)
        expected = {n: leaf.detach() for n, leaf in leaves.items()}
        assert_close(values.parameters, expected, 1e-13)


@pytest.mark.parametrize("shape", [(6, 4), (3, 5)])
def test_muon_is_near_that_of_torch(shape):
    """Which computes in bf16."""
    torch.manual_seed(0)
    start = torch.randn(shape)
    leaf = start.clone().requires_grad_()
    rest = {k: MUON[k] for k in ("lr", "momentum", "weight_decay")}
    theirs = torch.optim.Muon([leaf], adjust_lr_fn="match_rms_adamw", **rest)
    values = Values({"w": start}, {"w": {"momentum": torch.zeros(shape)}})
    for step in range(3):
        gradient = torch.randn(shape)
        leaf.grad = gradient.clone()
        theirs.step()
        values = reference_update(
            Optimizer("muon", MUON, 0.0), {"w": Form("matrix", 1)}, values, {"w": gradient}, step
        )
    moved = float((values.parameters["w"] - start).abs().max())
    assert float((values.parameters["w"] - leaf).detach().abs().max()) < 0.03 * moved


@pytest.mark.parametrize(
    ("shape", "form", "states"),
    [
        ((6, 4), Form("matrix", 1), {"rows": (6,), "columns": (4,)}),
        ((7,), Form("vector"), {"squares": (7,)}),
    ],
)
def test_adafactor_equals_that_of_torch(shape, form, states):
    torch.manual_seed(0)
    start = torch.randn(shape, dtype=torch.float64)
    leaf = start.clone().requires_grad_()
    theirs = torch.optim.Adafactor([leaf], lr=0.1, weight_decay=0.02, foreach=False)
    zeros = {name: torch.zeros(size, dtype=torch.float64) for name, size in states.items()}
    values = Values({"w": start}, {"w": zeros})
    optimizer = Optimizer("adafactor", {"lr": 0.1, "weight_decay": 0.02}, 0.0)
    for step in range(4):
        gradient = torch.randn(shape, dtype=torch.float64)
        leaf.grad = gradient.clone()
        theirs.step()
        values = reference_update(optimizer, {"w": form}, values, {"w": gradient}, step)
        assert_close(values.parameters, {"w": leaf.detach()}, 1e-9)
