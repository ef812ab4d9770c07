"""A valid document of each kind, small enough to mutate field by field."""

from __future__ import annotations

from typing import Any

from autoplan.files.checkpoint import Checkpoint, dump_checkpoint
from autoplan.files.data import data_folder
from autoplan.files.hf_config import load_model
from autoplan.files.machine_spec import load_hardware
from autoplan.files.plan import dump_plan
from autoplan.files.profiles import read_profile
from autoplan.files.program import dump_program
from autoplan.files.stack import load_stack
from autoplan.files.text import read_json
from autoplan.files.workload import dump_workload
from autoplan.ir.layout import Axis, B, Mesh, P, S
from autoplan.ir.plan import Home, Orders, Plan, Run, Schedule, StagePlan, Stored, Strategy
from autoplan.ir.program import (
    Action,
    Formal,
    Instr,
    Program,
    Register,
    Segment,
    SlotSpec,
    StageProgram,
)
from autoplan.ir.workload import PRECISIONS, Optimizer, Workload


def workload() -> Workload:
    return Workload(
        kind="train",
        global_batch_size=8,
        seq_len=64,
        precision=PRECISIONS["fp32"],
        optimizer=Optimizer("adamw", {"lr": 1e-3, "beta1": 0.9}, 1.0),
        memory_headroom=1 << 20,
    )


def plan() -> Plan:
    """Two stages of two devices."""
    split, whole = (S("b"),), (B,)
    strategies = {
        "embedding": Strategy("embedding", {"embed": ("b",)}, {"x": Home(split, split)}),
        "layer": Strategy(
            "layer",
            {"attention": ("g",), "add": ("P",), "norm": (None,)},
            {"x": Home(whole, (P(),))},
            {"x": split},
            {"wq": Stored((S("g"),), (S("g"),), (S("g"),))},
        ),
        "head": Strategy("head", {"logits": ("v",)}, {"x": Home(split, split)}),
    }
    stages = (
        StagePlan(Mesh((Axis("rank", 2, 1),), 0), (Run("embedding", 1), Run("layer", 2, True))),
        StagePlan(Mesh((Axis("rank", 2, 1),), 2), (Run("layer", 2), Run("head", 1))),
    )
    return Plan(
        model=load_model("tiny-llama"),
        hardware=load_hardware("cpu-host:4"),
        stack=load_stack("autoplan"),
        workload=workload(),
        strategies=strategies,
        stages=stages,
        schedule=Schedule("1f1b", 4),
        orders=Orders(2),
    )


def program() -> Program:
    """One stage of two ranks that scales a fed tensor and reduces it."""
    register = Register("x", (2, 64), "fp32", "activations")
    segment = Segment(
        "layer/F",
        (Formal(0, "in", "x", 0, True), Formal(2, "acc", "total", None, False, 1)),
        (register, register, register),
        (
            Instr("scale", (0,), (1,), (("factor", 0.5), ("name", None)), (-1,), (0,)),
            Instr("all_reduce", (1,), (2,), (("axes", (0,)), ("shard", ((0, (0,)),)))),
        ),
    )
    spec = SlotSpec(("x", 0, -1), register, (S("b"),), ("b", "m"), ("feed", "x"))
    weight = SlotSpec(("total", -1, -1), register, (B,), ("b", "m"), ("parameter", "total"))
    stage = StageProgram(
        stage=0,
        mesh=Mesh((Axis("gpu+node.2", 2, 1),), 0),
        segments={"layer/F": segment},
        actions=(
            Action("FEED", "", 0, 0, -1, ("x",)),
            Action("F", "layer/F", 0, 0),
            Action("SEND", "", 0, 0, 0, ("x", "d.x")),
            Action("NORM"),
        ),
        resident=(weight,),
        feeds={"x": spec},
        channels={},
        gradients={"total": weight},
    )
    groups = {"world": ((0, 1),), "tied:embed": ((0,), (1,))}
    return Program((stage,), 1, 4, 64, groups, {"b": 4, "m": 64})


def checkpoint() -> Checkpoint:
    """After three steps of a model with one weight."""
    return Checkpoint(3, {"optimizer": "sgd"}, {"seed": "0"}, {"parameter/w": "fp32 [64, 4]"})


def documents() -> dict[str, Any]:
    """Kind of file -> a valid document."""
    profiles = data_folder("hardware_profiles")
    models = data_folder("models")
    parallel = {"tp": 2, "pp": 2}
    return {
        "llama": read_json(models / "llama-3.1-8b.json"),
        "gpt2": read_json(models / "gpt2.json"),
        "gemma": read_json(models / "gemma-2b.json"),
        "hardware": read_profile(profiles / "rtx4090.json", "hardware_profiles", "hardware"),
        "stack": read_json(profiles / "stacks" / "megatron.json"),
        "workload": dump_workload(workload()),
        "plan": dump_plan(plan(), parallel, {"step_time_s": 1.5}, None, "0.1.0"),
        "program": dump_program(program()),
        "checkpoint": dump_checkpoint(checkpoint(), {".metadata": 7, "__0_0.distcp": 1 << 20}),
    }
