"""What torchrun starts reads a plan file and takes the words of `autoplan run`."""

from autoplan.cli import main
from autoplan.launch import parse, prepare


def test_a_plan_file_becomes_a_launch(tmp_path):
    plan = tmp_path / "plan.json"
    words = "simulate tiny-llama cpu-host:2 --gbs 4 --seq-len 32 --pin tp=2 -q -o"
    assert main([*words.split(), str(plan)]) == 0
    ready = prepare(parse([str(plan), "--steps", "3", "--no-verify", "--precision", "plan"]))
    assert ready.program.ranks == (0, 1)
    assert (ready.settings.steps, ready.settings.record) == (3, False)
    assert ready.trial.workload.precision.name == "fp32"
    assert ready.device_type == "cpu"
    assert prepare(parse([str(plan)])).trial.workload.precision.name == "fp64"
