"""A plan in a line: degrees, then what differs from the plain choice."""

from autoplan.report import pin_words

PLAIN = {
    "dp": 1, "tp": 1, "tp2": 1, "cp": 1, "pp": 1, "sp": True, "zero": 0, "micro_batch": 2,
    "schedule": "1f1b", "recompute": "none", "layers_per_stage": [4], "mixed": False,
}  # fmt: skip


def test_what_goes_without_saying_is_left_out():
    assert pin_words(PLAIN) == "one device micro_batch=2"


def test_degrees_come_first():
    plan = {**PLAIN, "dp": 8, "tp": 4, "sp": False, "zero": 1, "recompute": "full:3/4"}
    assert pin_words(plan) == "dp=8 tp=4 sp=false zero=1 recompute=full:3/4 micro_batch=2"


def test_stages_name_schedule_and_uneven_layers():
    plan = {**PLAIN, "pp": 2, "layers_per_stage": [3, 1], "mixed": True}
    assert pin_words(plan) == "pp=2 mixed=true micro_batch=2 schedule=1f1b layers=3+1"


def test_roles_that_differ_are_named():
    plan = {**PLAIN, "tp": {"attention": 2, "mlp": 4}}
    assert pin_words(plan) == "tp=attention:2/mlp:4 micro_batch=2"
