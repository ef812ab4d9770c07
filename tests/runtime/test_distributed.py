"""gloo: the same bits as lock-step."""

import pytest
import torch

from autoplan.runtime.lockstep import run_lockstep
from autoplan.runtime.supervise import Watch
from tests.runtime.tiny import CROSSED, collectives, drive, generator, native, pipeline


@pytest.mark.parametrize(
    "prog",
    [
        collectives("fp32", 8),
        collectives("fp64", 8),
        collectives("bf16", 8),
        collectives("fp64", 8, CROSSED),
        collectives("fp32", 2048),  # large enough for sums in two phases
        pipeline(),
    ],
    ids=["fp32", "fp64", "bf16", "crossed", "large", "pipeline"],
)
def test_gloo_equals_lockstep_bit_for_bit(pool, prog):
    expected = run_lockstep({rank: generator(prog, rank) for rank in prog.ranks})
    found = pool.run(drive, [(prog, rank, 1) for rank in prog.ranks], Watch(prog))
    for rank, slots in zip(prog.ranks, found, strict=True):
        assert slots.keys() == expected[rank].keys()
        for name, tensor in slots.items():
            assert torch.equal(tensor, expected[rank][name]), (rank, name)


def test_results_fill_buffers_of_their_own(pool):
    prog = collectives("fp32", 8)
    for slots in pool.run(drive, [(prog, rank, 1) for rank in prog.ranks], Watch(prog)):
        for tensor in slots.values():
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_the_librarys_own_collectives_agree_up_to_rounding(pool):
    prog = collectives("fp64", 8)
    expected = run_lockstep({rank: generator(prog, rank) for rank in prog.ranks})
    found = pool.run(native, [(prog, rank) for rank in prog.ranks], Watch(prog))
    for rank, results in zip(prog.ranks, found, strict=True):
        assert len(results) == 10
        for index, tensor in enumerate(results):
            assert torch.allclose(tensor, expected[rank][f"y{index + 3}"])
