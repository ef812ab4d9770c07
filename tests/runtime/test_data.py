"""Laws: a batch is a function of the step; targets are next tokens; valid counts are unequal."""

from __future__ import annotations

import pytest
import torch

from autoplan.errors import InputError
from autoplan.runtime.data import MASKED, Shape, SyntheticBatches, TextBatches, open_batches

TEXT = b"one two\nthree\n\nfour five six\n \n\nseven"


def test_synthetic_batches_are_a_function_of_seed_and_step():
    shape = Shape(8, 32, 50)
    ids, targets, count = SyntheticBatches(shape, 1).batch(3)
    again = SyntheticBatches(shape, 1).batch(3)
    assert torch.equal(ids, again[0])
    assert torch.equal(targets, again[1])
    for other in (SyntheticBatches(shape, 1).batch(4), SyntheticBatches(shape, 2).batch(3)):
        assert not torch.equal(ids, other[0])
    assert ids.shape == targets.shape == (8, 32)
    assert 0 <= int(ids.min()) <= int(ids.max()) < 50
    valid = targets != MASKED
    assert count == int(valid.sum())
    assert torch.equal(targets[:, :-1][valid[:, :-1]], ids[:, 1:][valid[:, :-1]])
    assert len(set(valid.sum(1).tolist())) > 2


def test_about_a_fifth_of_synthetic_targets_is_masked():
    _, _, count = SyntheticBatches(Shape(64, 128, 50), 0).batch(0)
    assert count / (64 * 128) == pytest.approx(0.8, abs=0.06)


def test_text_windows_follow_each_other_and_wrap():
    batches = TextBatches(Shape(2, 5, 256), TEXT)
    stream = TEXT * 3
    for step in range(4):
        ids, targets, _ = batches.batch(step)
        for i in range(2):
            first = (step * 2 + i) * 5
            assert bytes(ids[i].tolist()) == stream[first : first + 5]
            for j, target in enumerate(targets[i].tolist()):
                assert target in (MASKED, stream[first + j + 1])


def test_document_ends_are_masked():
    n = len(TEXT)
    _, targets, count = TextBatches(Shape(1, n, 256), TEXT).batch(0)
    learned = bytes(b for b in targets[0].tolist() if b != MASKED)
    assert learned == b"ne two\nthree\nour five six\neven"
    assert count == len(learned)


def test_small_vocabularies_take_bytes_modulo_their_size():
    ids, _, _ = TextBatches(Shape(1, 8, 10), TEXT).batch(0)
    assert ids[0].tolist() == [byte % 10 for byte in TEXT[:8]]


def test_a_batch_without_valid_targets_counts_one():
    _, targets, count = TextBatches(Shape(1, 1, 256), b"\n\nab").batch(3)
    assert targets.tolist() == [[MASKED]]
    assert count == 1


def test_batches_come_from_a_file_or_from_the_seed(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    shape = Shape(1, 4, 256)
    assert bytes(open_batches(shape, 0, path).batch(0)[0][0].tolist()) == TEXT[:4]
    assert isinstance(open_batches(shape, 0, None), SyntheticBatches)


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"\n\n\n"])
def test_bad_files_are_input_errors(tmp_path, content):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="--data"):
        open_batches(Shape(1, 4, 256), 0, path)
