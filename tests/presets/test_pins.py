"""Laws: a pin is read the same however it is spelt; every wrong one is reported at once."""

from __future__ import annotations

import pytest

from autoplan.errors import InputError
from autoplan.presets.pins import ALIASES, LATER, PARSERS, Pin, normalise_key, parse_pins

GOOD = {
    "dp": "4", "tp": "2", "tp2": "2", "cp": "2", "pp": "2", "sp": "false", "zero": "3",
    "vpp": "2", "vocab": "true", "order": "tp-dp-pp", "micro_batch": "2", "recompute": "full",
    "schedule": "gpipe", "layers_per_stage": "3+1",
}  # fmt: skip


def problems(*texts: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse_pins(texts)
    return [str(problem) for problem in caught.value.problems]


def test_every_key_is_read():
    pins = parse_pins([",".join(f"{key}={value}" for key, value in GOOD.items())])
    assert set(pins) == set(PARSERS) == set(GOOD)
    assert pins["dp"].single == 4
    assert pins["sp"].single is False
    assert pins["order"].single == "tp-dp-pp"
    assert pins["layers_per_stage"].single == (3, 1)


def test_several_texts_add_up():
    assert parse_pins(["tp=2", "pp=4, zero=1"]) == parse_pins(["tp=2,pp=4,zero=1"])


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("TP=2", "tp=2"), ("micro-batch=2", "micro_batch=2"), ("MBS=2", "micro_batch=2"),
        ("tensor_model_parallel_size=2", "tp=2"), ("--pp=2", "pp=2"), ("schedule=1F1B",
        "schedule=1f1b"), ("order=tp:dp", "order=tp-dp"), ("order=tp>dp", "order=tp-dp"),
        ("layers_per_stage=3:1", "layers_per_stage=3+1"), ("sp=on", "sp=true"),
        ("sp=0", "sp=false"), ("tp = 2", "tp=2"), ("schedule=Interleaved1F1B",
        "schedule=interleaved"), ("virtual_pipeline_model_parallel_size=2", "vpp=2"),
    ],
)  # fmt: skip
def test_spellings(text, same):
    assert parse_pins([text]) == parse_pins([same])


def test_aliases_lead_to_keys():
    assert set(ALIASES.values()) <= set(PARSERS)
    assert all(normalise_key(alias) == key for alias, key in ALIASES.items())
    assert not LATER & set(PARSERS)


def test_choices_and_bounds():
    pins = parse_pins(["tp=2|4,pp<=8,dp>=2,cp=1"])
    assert [n for n in range(1, 10) if pins["tp"].allows(n)] == [2, 4]
    assert [n for n in range(1, 12) if pins["pp"].allows(n)] == list(range(1, 9))
    assert not pins["dp"].allows(1)
    assert pins["dp"].allows(1000)
    assert pins["tp"].single is None
    assert pins["cp"].single == 1
    assert Pin(("gpipe",)).single == "gpipe"


@pytest.mark.parametrize(
    "text",
    ["tp=0", "tp=-2", "tp=two", "tp=1.5", "tp=", "tp", "=2", "pp=-1", "zero=4", "zero=-1",
     "sp=maybe", "order=tp-tp", "order=tp-xp", "schedule=zb", "recompute=some", "micro_batch=0",
     "layers_per_stage=3+-1", "layers_per_stage=a", "sp<=1", "schedule<=gpipe", "tp<=2|4",
     "ep=2", "vpp=0", "tqp=2", "tp=nan", "tp=inf", "dp=-2"],
)  # fmt: skip
def test_wrong_pins_are_refused(text):
    (problem,) = problems(text)
    assert problem.startswith("--pin")


def test_all_problems_at_once():
    found = problems("tp=0,ep=2,zero=9", "nonsense", "tp=2,pp=x,dp=2,dp=4")
    # tp=0 leaves no pin, so the second tp is no repetition.
    assert len(found) == 6
    assert any("ep" in problem and "does not express" in problem for problem in found)
    assert any("second value" in problem for problem in found)


def test_a_misspelt_key_gets_a_hint():
    assert "did you mean `micro_batch`?" in problems("mikro_batch=2")[0]
