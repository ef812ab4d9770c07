"""The plans that a run must verify: familiar names, tiny models, two to eight ranks.

Shared by `test_verified_plans` and `scripts/verify_plans.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autoplan.files.workload import parse_precision, precision_document
from autoplan.frontends import step_graph
from autoplan.ir.graph import Graph
from autoplan.ir.lengths import Lengths
from autoplan.ir.machine import Stack
from autoplan.ir.model import DecoderConfig
from autoplan.ir.plan import Plan
from autoplan.ir.program import Program
from autoplan.ir.workload import LossScale, Optimizer, Workload
from autoplan.lower import lower
from autoplan.presets import build_plan
from autoplan.presets.pins import parse_pins
from autoplan.runtime.data import Batches, Shape, open_batches
from autoplan.runtime.documents import DocumentBatches
from autoplan.runtime.execute import RunResult, execute, whole_records
from autoplan.runtime.pool import Pool
from autoplan.runtime.progress import describe_place
from autoplan.runtime.session import Settings
from autoplan.runtime.verify import Trial, Verdict, verify
from autoplan.simulate.account import account
from tests.plans import ADAMW, SEQ_LEN, TINY_GPT, TINY_LLAMA, machine

LLAMA = TINY_LLAMA
TIED = replace(TINY_LLAMA, name="tiny-tied", tied_embeddings=True)
DEEP = replace(TINY_LLAMA, name="tiny-deep", layers=4)
ODD = replace(TINY_LLAMA, name="tiny-odd", layers=3)
DEEPER = replace(TINY_LLAMA, name="tiny-deeper", layers=8)
GPT = replace(TINY_GPT, attention_dropout=0.1)
GEMMA = replace(
    TINY_LLAMA, family="gemma", name="tiny-gemma", kv_heads=1, norm_offset=1.0,
    activation="gelu_tanh", tied_embeddings=True, embedding_scale=32**0.5,
)  # fmt: skip
ADAFACTOR = Optimizer("adafactor")
LION = Optimizer("lion")
LORA = "lora:r=4,targets=q|k|v|o|gate|up|down,alpha=12"
MUON = Optimizer("muon", {"lr": 1e-2})
NEOX = replace(
    GPT, family="gpt_neox", name="tiny-neox", rope_theta=10000.0, rotary_dim=2, head_bias=True,
    learned_positions=False, tied_embeddings=False, parallel_residual=True, activation="relu",
    embedding_dropout=0.0, attention_dropout=0.0, residual_dropout=0.0,
)  # fmt: skip
QWEN = replace(
    TINY_LLAMA, family="qwen3", name="tiny-qwen", qkv_bias=True, qk_norm=True, sliding_window=5
)
SGD = Optimizer("sgd", {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1})
SEED = 3
FSDP2 = "bf16_mixed,parameter=fp32,reduce=bf16"
"""Mixed precision of torch's fully_shard: casts before gathers, reduces in 16 bits."""
OVERFLOWING = LossScale(2.0**20, 1)
"""Gradients overflow at first; the scale grows after every good step."""
PACKED = Lengths("packed", ((1, 1.0), (3, 2.0), (7, 1.0), (12, 1.0)))
PADDED = Lengths("padded", PACKED.histogram)


@dataclass(frozen=True)
class Case:
    """A run to verify.

    Attributes:
        ranks: number of processes.
        pins: of the plan.
        model: what is trained.
        batch: sequences per step.
        steps: how many.
        optimizer, trainable, precision, loss_scale, lengths: of the workload.
        text: read a text file instead of synthetic tokens.
        seq_len: positions per sequence.
    """

    ranks: int
    pins: str
    model: DecoderConfig = LLAMA
    batch: int = 4
    steps: int = 2
    optimizer: Optimizer = ADAMW
    trainable: str = "full"
    precision: str = "fp64"
    text: bool = False
    seq_len: int = SEQ_LEN
    loss_scale: LossScale = LossScale()
    lengths: Lengths | None = None

    def __str__(self) -> str:
        """Model, pins and what is unusual, for people and as the name of a test."""
        parts = [self.model.name, self.pins]
        parts += [self.optimizer.name] if self.optimizer is not ADAMW else []
        parts += {"full": [], LORA: ["adapters"]}.get(self.trainable, ["frozen"])
        parts += [self.precision] if self.precision != "fp64" else []
        parts += [self.lengths.packing] if self.lengths else []
        parts += ["text"] if self.text else []
        return " ".join(parts)

    @property
    def workload(self) -> Workload:
        """Of the plan."""
        precision = parse_precision(precision_document(self.precision, []), "precision")
        return Workload(
            "train", self.batch, self.seq_len, precision, self.optimizer, self.trainable,
            seed=SEED, loss_scale=self.loss_scale, lengths=self.lengths,
        )  # fmt: skip


def _pipelines() -> tuple[Case, ...]:
    """Both families with one, four and eight micro-batches."""
    return tuple(
        Case(stages, f"pp={stages},schedule={family},micro_batch={8 // count}", model, batch=8)
        for stages, model in ((2, LLAMA), (4, DEEP))
        for family in ("1f1b", "gpipe")
        for count in (1, 4, 8)
    )


def _chunks() -> tuple[Case, ...]:
    """Interleaved stages: one turn and several, two and four stages, uneven and unlike chunks."""
    return (
        Case(2, "pp=2,vpp=2,micro_batch=2", DEEP),
        Case(2, "pp=2,vpp=2", DEEP, batch=6, steps=3),
        Case(2, "pp=2,vpp=3,layers_per_stage=1+1+2+1+2+1", DEEPER),
        Case(2, "pp=2,vpp=2,layers_per_stage=0+2+2+0", replace(DEEP, tied_embeddings=True)),
        Case(2, "pp=2,vpp=2", DEEP, trainable=r"layers\.2\."),
        Case(4, "pp=4,vpp=2", DEEPER, batch=8),
        Case(4, "dp=2,pp=2,vpp=2,zero=3", replace(GPT, layers=4), batch=8),
        Case(4, "tp=2,pp=2,vpp=2,recompute=full", DEEP),
        Case(4, "cp=2,pp=2,vpp=2", DEEP, lengths=PACKED),
    )


CASES = (
    Case(2, "dp=2", steps=3),
    Case(2, "dp=2", text=True),
    Case(2, "dp=2", optimizer=SGD),
    Case(2, "dp=2", trainable=r"layers\.1\."),
    Case(2, "tp=2", steps=3),
    Case(2, "tp=2,sp=false"),
    Case(2, "tp=2,vocab=false"),
    Case(4, "tp=2,tp2=2"),
    Case(4, "tp=4,sp=false"),
    Case(2, "cp=2"),
    *(Case(2, f"dp=2,zero={level}", steps=3) for level in (1, 2, 3)),
    Case(2, "dp=2,zero=3,recompute=full", optimizer=SGD, text=True),
    *_pipelines(),
    Case(2, "pp=2,recompute=full"),
    Case(2, "pp=2,layers_per_stage=2+1", ODD),
    Case(2, "pp=2,layers_per_stage=1+2", ODD, optimizer=SGD),
    Case(2, "pp=2", TIED),
    Case(4, "dp=2,pp=2,zero=3", TIED),
    Case(2, "pp=2", trainable=r"layers\.1\."),
    Case(4, "dp=2,pp=2,zero=1", trainable=r"layers\.1\.|head|norm"),
    Case(4, "tp=2,pp=2", trainable=LORA, steps=3),
    Case(4, "dp=2,cp=2", lengths=PACKED),
    *_chunks(),
    Case(2, "pp=2,recompute=selective", DEEP),
    Case(2, "tp=2", GPT),
    Case(2, "cp=2", GPT),
    Case(4, "dp=2,pp=2,zero=2", GPT),
    Case(2, "tp=2", GEMMA),
    Case(2, "pp=2", GEMMA, text=True),
    Case(4, "dp=2,tp=2,zero=1", GEMMA),
    Case(8, "dp=2,tp=2,pp=2", steps=3),
    Case(8, "dp=2,tp=2,pp=2,zero=1,recompute=full", GPT),
    Case(8, "dp=2,cp=2,tp=2,zero=3"),
    Case(4, "dp=2,tp=2,zero=1", optimizer=ADAFACTOR),
    Case(2, "dp=2,zero=2", optimizer=LION),
    Case(4, "dp=2,tp=2,zero=3", optimizer=MUON, steps=3),
    Case(4, "dp=2,tp=2,zero=3", NEOX),
    Case(4, "cp=2,tp=2", QWEN),
    Case(4, "dp=2,tp=2", precision="fp32"),
    Case(2, "dp=2,zero=1", precision="bf16_mixed"),
    Case(2, "dp=2,zero=3", precision=FSDP2),
    Case(4, "dp=2,pp=2", precision="fp16_mixed", steps=3, loss_scale=OVERFLOWING),
)


@dataclass(frozen=True)
class Prepared:
    """A case, lowered."""

    case: Case
    graph: Graph
    plan: Plan
    program: Program
    batches: Batches

    @property
    def settings(self) -> Settings:
        """How to run it."""
        return Settings(self.case.steps, SEED, self.batches)

    def run(self, pool: Pool | None = None) -> RunResult:
        """Run it in the pool's processes, or here in lock-step."""
        return execute(self.program, self.graph, self.settings, pool)

    def foretold(self) -> dict[int, tuple[int, str]]:
        """Rank -> (largest count in bytes, where it is reached), from the Program alone."""
        table = {}
        for stage in self.program.stages:
            told = account(stage)
            for rank in stage.mesh.devices():
                at = describe_place(self.program, rank, told.action, told.instruction)
                table[rank] = told.peak, at
        return table

    def verify(self, result: RunResult) -> Verdict:
        """Compare a run with the unsharded reference."""
        trial = Trial(self.graph, self.case.workload, self.batches)
        return verify(trial, *whole_records(result))


def prepare(case: Case) -> Prepared:
    """Build the plan that a case's pins name, and lower it."""
    graph = step_graph(case.model, case.workload)
    profile = (machine(case.ranks), Stack("toy", habits=("selective_alternate",)))
    plan = build_plan(graph, case.model, profile, case.workload, parse_pins([case.pins]))
    shape = Shape(case.batch, case.seq_len, case.model.vocab)
    # Any text file will do; this one is at hand wherever the tests are.
    batches = open_batches(shape, SEED, Path(__file__) if case.text else None)
    if case.lengths:
        batches = DocumentBatches(batches, case.lengths, SEED)
    return Prepared(case, graph, plan, lower(graph, plan), batches)
