"""Lock-step: right results, and who waits for what when nothing moves."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from autoplan.errors import CheckError
from autoplan.ir.layout import Mesh
from autoplan.ir.program import Action, Instr
from autoplan.runtime.lockstep import run_lockstep
from autoplan.runtime.requests import Expect, Receive
from tests.runtime.tiny import (
    PAIR,
    collectives,
    generator,
    of,
    pipeline,
    program,
    reg,
    segment,
    stage,
    values,
)


def run(prog):
    return run_lockstep({rank: generator(prog, rank) for rank in prog.ranks})


def test_collectives_against_whole_tensors():
    prog = collectives("fp64", 8)
    results = run(prog)
    x = [[values(prog, rank)[f"x{i}"] for rank in range(4)] for i in range(3)]
    for rank in range(4):
        y = {int(name[1:]): t for name, t in results[rank].items() if name.startswith("y")}
        row, column = divmod(rank, 2)
        assert torch.equal(y[3], x[0][0] + x[0][1] + x[0][2] + x[0][3])
        assert torch.equal(y[5], x[0][column] + x[0][column + 2])
        lse = torch.stack(x[2])[..., 0].logsumexp(0)
        assert torch.allclose(y[6], torch.stack((lse, torch.stack(x[2])[..., 1].sum(0)), -1))
        neighbours = [2 * row, 2 * row + 1]
        assert torch.equal(y[7], torch.cat([x[0][r] for r in neighbours], 0))
        assert torch.equal(y[8], torch.cat([x[1][r] for r in neighbours], 1))
        assert torch.allclose(y[9], sum(x[0]).chunk(4, 0)[rank])
        assert torch.allclose(y[10], sum(x[1]).chunk(4, 1)[rank])
        assert torch.equal(y[11], torch.cat([t.chunk(4, 1)[rank] for t in x[0]], 0))
        assert torch.equal(y[12], torch.cat([t.chunk(4, 0)[rank] for t in x[1]], 1))


def test_transfers_go_to_the_same_place_of_the_other_stage():
    prog = pipeline()
    results = run(prog)
    x = [values(prog, rank)["x0"] for rank in (0, 1)]
    expected = sum(-1.5 * t for t in x) + sum(-3.0 * t for t in x)
    for rank in prog.ranks:
        assert torch.allclose(results[rank]["w"], expected)
        assert "y" not in results[rank]  # a sent slot ends with its WAIT


def told(rank, log):
    """A rank's requests, written down on their way."""
    reply = None
    while True:
        try:
            request = rank.send(reply)
        except StopIteration as end:
            return end.value
        log.append(request)
        reply = yield request


def test_the_next_of_every_peer_is_expected_before_anything_else():
    """So it can arrive while a rank computes; there is one at a time from each peer."""
    prog = pipeline()
    logs = {rank: [] for rank in prog.ranks}
    run_lockstep({rank: told(generator(prog, rank), logs[rank]) for rank in prog.ranks})
    for log in logs.values():
        awaited = set()
        for request in log:
            if isinstance(request, Expect):
                assert request.receive.peer not in {receive[-2] for receive in awaited}
                awaited.add(request.receive.identity)
            if isinstance(request, Receive):
                awaited.remove(request.identity)
        received = [request.identity for request in log if isinstance(request, Receive)]
        assert received
        assert not awaited
        for one, other in pairwise(received):
            at = next(k for k, r in enumerate(log) if isinstance(r, Receive) and r.identity == one)
            assert isinstance(log[at + 1], Expect)
            assert log[at + 1].receive.identity == other


def changed(*lists):
    """The pipeline with other action lists for its two stages."""
    prog = pipeline()
    pairs = zip(prog.stages, lists, strict=True)
    stages = (replace(here, actions=tuple(actions)) for here, actions in pairs)
    return replace(prog, stages=tuple(stages))


def test_dropped_send_is_a_named_deadlock():
    one, two = (list(here.actions) for here in pipeline().stages)
    with pytest.raises(CheckError) as caught:
        run(changed(one, [a for a in two if a.kind not in ("SEND", "WAIT")]))
    text = str(caught.value)
    assert "deadlock" in text
    assert "rank 0: RECV back @1: waits for back" in text
    assert "rank 2: NORM N: all_reduce over (0, 1, 2, 3) waits for ranks [0, 1]" in text


def test_unreceived_send_is_found_with_and_without_its_wait():
    one = pipeline().stages[0].actions
    alone = [one[0], one[1]]
    with pytest.raises(CheckError, match="never received:\n  y .*from rank 0 to 2, by SEND y @1"):
        run(changed(alone, []))
    with pytest.raises(CheckError, match="rank 0: WAIT y @1: waits until rank 2 takes y"):
        run(changed([*alone, one[3]], []))


@pytest.mark.parametrize("other", [("all_reduce", 6), ("all_gather", 4)])
def test_disagreement_names_both_sides(other):
    def half(rank, op, width):
        attrs = (("axes", "both"), ("dims", (0,)), ("reduction", "sum"))
        part = segment("S", [of("x0", 0)], [reg(width), reg(width)], [Instr(op, (0,), (1,), attrs)])
        return stage(Mesh((), rank), [part], [Action("F", "S")], index=rank)

    prog = replace(program(half(0, "all_reduce", 4), half(1, *other)), groups={"both": ((0, 1),)})
    with pytest.raises(CheckError) as caught:
        run(prog)
    assert "rank 0: F S: all_reduce(float32[4]" in str(caught.value)
    assert f"rank 1: F S: {other[0]}(float32[{other[1]}]" in str(caught.value)


def test_transfer_of_another_shape_is_found():
    prog = pipeline()
    wrong = replace(prog.stages[1].channels["y"], register=reg(5))
    stages = (prog.stages[0], replace(prog.stages[1], channels={"y": wrong}))
    with pytest.raises(CheckError, match=r"sends \(\(4,\), .* expects \(\(5,\)"):
        run(replace(prog, stages=stages))


def test_one_rank_needs_nobody():
    part = segment("S", [of("x0", 0), of("y", 1, "out")], [reg(4), reg(4)],
                   [Instr("scale", (0,), (1,), (("factor", 2.0),))])  # fmt: skip
    prog = program(stage(PAIR, [part], [Action("F", "S")]))
    assert torch.equal(run(prog)[1]["y"], values(prog, 1)["x0"] * 2)
