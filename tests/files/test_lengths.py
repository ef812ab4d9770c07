"""Histograms as files and in workloads: what they mean, and all that is wrong at once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autoplan.errors import InputError
from autoplan.files.lengths import lengths_document
from autoplan.files.workload import dump_workload, parse_workload
from autoplan.ir.lengths import Lengths
from tests.files.examples import workload

HISTOGRAM = {"512": 0.7, "128": 0.3, "64": 0}


def parsed(document, **more):
    return parse_workload({**dump_workload(workload()), "lengths": document, **more}, "w.json")


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_a_file_with_a_packing(tmp_path, packing):
    path = tmp_path / "h.json"
    path.write_text(json.dumps(HISTOGRAM))
    found = []
    document = lengths_document(f"{path}:{packing}", found)
    assert not found
    noun = parsed(document, seq_len=512)
    assert noun.lengths == Lengths(packing, ((128, 0.3), (512, 0.7)))
    assert parse_workload(dump_workload(noun), "w.json") == noun


def test_a_list_counts_and_the_default_is_padded(tmp_path):
    path = tmp_path / "h.json"
    path.write_text("[7, 5, 7]")
    noun = parsed(lengths_document(str(path), []), seq_len=7)
    assert noun.lengths == Lengths("padded", ((5, 1.0), (7, 2.0)))
    assert noun.tokens == round(noun.global_batch_size * 19 / 3)


def test_fixed_lengths_leave_the_document_as_it_was():
    assert lengths_document(" Fixed ", []) is None
    assert "lengths" not in dump_workload(workload())
    assert parsed(None) == workload()


@pytest.mark.parametrize(
    "histogram",
    [{}, [], {"0": 1}, {"x": 1}, {"5": -1}, {"5": 0}, [0], [1.5], [True], ["5"], 3, {"5": "1"}],
)
def test_malformed_histograms_are_refused(histogram):
    with pytest.raises(InputError) as caught:
        parsed({"histogram": histogram})
    assert all(p.field.startswith("$.lengths.histogram") for p in caught.value.problems)


def test_a_document_longer_than_a_sequence_is_refused():
    with pytest.raises(InputError, match="at most the 64 positions") as caught:
        parsed({"histogram": {"65": 1}, "packing": "packed"}, seq_len=64, precision="bf16_mixd")
    assert len(caught.value.problems) == 2


def test_misspelt_packings_and_missing_files_are_named(tmp_path):
    found = []
    assert lengths_document(f"{tmp_path}/h.json:pakced", found) is None
    assert "did you mean `packed`?" in str(found[0])
    assert lengths_document(f"{tmp_path}/h.json:packed", found) is None
    assert "h.json" in str(found[1])


def test_scaling_keeps_shares():
    lengths = Lengths("packed", ((1, 1.0), (64, 1.0), (128, 3.0), (512, 1.0)))
    assert lengths.scaled(512, 8).histogram == ((1, 2.0), (2, 3.0), (8, 1.0))


def test_tokens_and_visible_shares():
    lengths = Lengths("packed", ((100, 1.0), (300, 1.0)))
    noun = replace(workload(), seq_len=1000, lengths=lengths)
    assert noun.tokens == noun.global_batch_size * 1000
    assert noun.visible == pytest.approx((100**2 + 300**2) / (100 + 300) / 1000)
    assert replace(noun, lengths=replace(lengths, packing="padded")).visible is None
