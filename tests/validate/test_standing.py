"""Which runs count, and which are set apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.ir.record import Measured, Record, Shape
from autoplan.validate.standing import doubt_about, group_of, remark_on, source_of

RUN = Record(
    id="nanotron-17", source="Playbook", name="1B", shape=Shape(), seq_len=4096, devices=8,
    global_batch=256, micro_batch=4, device="H100", parallel={"tp": 2, "pp": 2, "dp": 2},
    measured=Measured(step_time_s=9.0, mfu=0.02),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("vtrain-single-0017", "vtrain-single"),
        ("vtrain-multi-3", "vtrain-multi"),
        ("mpt-12", "mpt"),
        ("zb-t4-14.6B-g16", "zb"),
        ("fmsfsdp-Llama-2-7B", "fmsfsdp"),
        ("17", "Playbook"),
        ("", "Playbook"),
        ("run", "Playbook"),
        ("17-18", "Playbook"),
    ],
)
def test_the_source_is_read_off_the_id(name, source):
    assert source_of(replace(RUN, id=name)) == source


def test_a_long_source_is_cut():
    assert source_of(replace(RUN, id="", source="x" * 100)) == "x" * 40


def test_alternatives_share_model_machine_and_batch():
    assert group_of(RUN) == group_of(replace(RUN, id="nanotron-18", parallel={}, micro_batch=1))
    for change in ({"devices": 16}, {"seq_len": 1}, {"global_batch": 1}, {"kernel": "x"}):
        assert group_of(RUN) != group_of(replace(RUN, **change))


@pytest.mark.parametrize(
    ("flag", "remark"),
    [
        ("partly_remembered", "partly_remembered"),
        ("architecture_assumed", "architecture_assumed"),
        ("lora_finetune", "lora_finetune"),
        ("flops_check_off_by_-7%", "flops_check"),
        ("off_grid_batch", ""),
        ("oom", ""),
    ],
)
def test_a_doubtful_configuration_does_not_count(flag, remark):
    assert remark_on(replace(RUN, id="mpt-1", flags=(flag,))) == remark


def test_a_stall_is_a_long_slot_without_work():
    """64 micro-batches of 4 on 2 replicas are 32; with 2 stages, 33 slots."""
    slow = replace(RUN, measured=Measured(step_time_s=17.0, mfu=0.01))
    assert remark_on(RUN) == ""
    assert remark_on(slow) == "stalled"
    assert remark_on(replace(slow, id="mpt-1")) == "", "no rule of other sources"
    assert remark_on(replace(slow, measured=Measured(step_time_s=17.0, mfu=0.3))) == ""
    assert remark_on(replace(slow, measured=Measured(step_time_s=17.0))) == ""


def test_groups_over_nodes_are_scored_apart():
    wide = replace(RUN, parallel={"tp": 16, "pp": 1, "dp": 1})
    assert remark_on(wide) == "tp > 8"
    assert remark_on(replace(wide, id="mpt-1")) == ""


def test_what_is_apart_only_because_it_is_another_matter_may_be_fitted_to():
    chips = replace(RUN, id="maxtext-1", device="TPU v5e")
    assert (remark_on(chips), doubt_about(chips)) == ("TPU", "")
    vague = replace(chips, flags=("layout_unknown",))
    assert doubt_about(vague) == remark_on(vague) == "layout_unknown"
    wide = replace(RUN, parallel={"tp": 16, "pp": 1, "dp": 1})
    assert doubt_about(wide) == remark_on(wide) == "tp > 8"
