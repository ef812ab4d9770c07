"""A configuration of other software is priced as the plan that it describes, and improved upon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoplan.errors import InputError
from autoplan.workflow import Options, Question, plan_explain
from autoplan.workflow.configured import config_document, read_configured
from autoplan.workflow.measured import compare_measured
from autoplan.workflow.verbs import find_plan, plan_search
from tests.files.launches import MEGATRON_DUMP, TORCHTITAN_TOML, megatron_log, torchtitan_log

MODEL = (
    "--num-layers 4 --hidden-size 64 --ffn-hidden-size 128 --num-attention-heads 8 "
    "--group-query-attention --num-query-groups 4 --max-position-embeddings 64 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 "
)
RUN = (
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
    "--use-distributed-optimizer --micro-batch-size 1 --global-batch-size 8 --seq-length 32 "
)
TOML = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 2048
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "none"
"""


def written(folder, words, devices=4):
    path = folder / "run.sh"
    path.write_text(f"torchrun --nproc_per_node {devices} pretrain_gpt.py {words}\n")
    return str(path)


@pytest.fixture
def script(tmp_path):
    return lambda words: written(tmp_path, words)


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """A run of two devices, a fifth slower than predicted: (path, what is explained)."""
    words = MODEL + RUN.replace("--pipeline-model-parallel-size 2 ", "")
    path = written(tmp_path_factory.mktemp("run"), f"{words} --vocab-size 512 --wonder 3", 2)
    question = read_configured(Question("cpu-host:2"), path).question
    seconds = 1.2 * find_plan(question).priced.timeline.step_time
    return path, plan_explain(Question("cpu-host"), measured=f"step_time={seconds!r}", config=path)


def test_a_configuration_is_priced_as_its_pins(explained):
    path, done = explained
    question = read_configured(Question("cpu-host:2"), path).question
    assert done.target.priced.predicted == find_plan(question).priced.predicted
    parallel = done.target.priced.parallel
    assert {key: parallel[key] for key in ("tp", "pp", "dp", "sp", "micro_batch")} == {
        "tp": 2, "pp": 1, "dp": 1, "sp": True, "micro_batch": 1,
    }  # fmt: skip
    assert f"2 devices, as {path} starts" in done.target.assumed
    config = done.document["config"]
    assert (config["stack"], config["not_understood"]) == ("megatron", ["--wonder 3"])


def test_the_better_plan_is_that_of_a_search(explained):
    """Same model, machine, batch and software; it is never slower than the configuration."""
    path, done = explained
    better = done.document["better"]
    asked = read_configured(Question("cpu-host:2"), path).question
    best = plan_search(replace(asked, pins=()), 1).plans[0]
    assert better["predicted"] == best.predicted
    own, seconds = done.target.priced.timeline.step_time, best.timeline.step_time
    assert better["faster"] == pytest.approx(1 - seconds / own)
    assert better["faster"] > 0
    assert better["expected_step_time_s"] == pytest.approx(1.2 * seconds)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "as_predicted"), (20.0, "slower"), (0.02, "faster")]
)
@pytest.mark.parametrize("name", ["step_time", "mfu", "tokens_per_s"])
def test_whether_a_run_is_as_good_as_it_should_be(explained, factor, verdict, name):
    path, done = explained
    priced = done.target.priced
    key = "step_time_s" if name == "step_time" else name
    value = priced.predicted[key] * (factor if name == "step_time" else 1 / factor)
    configured = read_configured(Question("cpu-host:2"), path)
    rows = compare_measured(priced, {"memory": 1e9, name: value})
    run = config_document(configured, priced, rows)["run"]
    assert run["verdict"] == verdict
    assert run["step_time_s"] == pytest.approx(factor * priced.predicted["step_time_s"])
    assert config_document(configured, priced, rows[:1])["run"] is None


def test_what_is_typed_wins(script):
    path = script(MODEL + RUN + "--vocab-size 512")
    options = Options(global_batch_size="16", precision="fp64")
    typed = Question(
        "cpu-host:4", pins=("zero=0,micro_batch=2",), options=options, stack="autoplan"
    )
    question = read_configured(typed, path).question
    plan = find_plan(question).priced
    assert (plan.parallel["zero"], plan.parallel["micro_batch"], plan.parallel["tp"]) == (0, 2, 2)
    assert plan.plan.workload.global_batch_size == 16
    assert (plan.plan.workload.precision.name, plan.plan.stack.name) == ("fp64", "autoplan")


def test_a_batch_of_each_replica_is_multiplied(tmp_path):
    """Two sequences of each of 16 / 2 replicas; a named model is found by its name."""
    (tmp_path / "a.toml").write_text(TOML)
    configured = read_configured(Question("h100-80g:16"), str(tmp_path / "a.toml"))
    assert configured.question.options.global_batch_size == 16
    assert configured.question.subject == "llama-3.1-8b"
    priced = find_plan(configured.question).priced
    assert (priced.parallel["dp"], priced.parallel["zero"]) == (8, 3)


def test_a_model_is_asked_for_where_the_file_describes_none(script):
    path = script(RUN)
    with pytest.raises(InputError, match="a model before the machine"):
        read_configured(Question("cpu-host:4"), path)
    done = read_configured(Question("tiny-llama", "cpu-host:4"), path)
    assert done.question.subject == "tiny-llama"


def test_a_named_model_must_be_the_one_of_the_file(script):
    path = script(MODEL.replace("--num-layers 4", "--num-layers 7") + RUN + "--vocab-size 512")
    with pytest.raises(InputError) as error:
        read_configured(Question("tiny-llama", "cpu-host:4"), path)
    assert "layers" in {problem.field for problem in error.value.problems}
    assert {problem.source for problem in error.value.problems} == {path}


def test_a_machine_must_have_the_devices_of_the_file(script):
    path = script(MODEL + RUN + "--vocab-size 512")
    with pytest.raises(InputError, match="4 devices, as"):
        read_configured(Question("cpu-host:8"), path)


def test_everything_wrong_is_told_at_once(script):
    words = MODEL.replace("--hidden-size 64", "--hidden-size x") + RUN
    with pytest.raises(InputError) as error:
        plan_explain(Question("cpu-hots"), "tq=3", "speed=1", script(words))
    sources = [problem.source for problem in error.value.problems]
    assert {"--why-not", "--measured"} <= set(sources)
    assert any(source.endswith("run.sh") for source in sources)


def test_a_log_is_its_own_measurement(tmp_path):
    """Its configuration is priced, and its step time and memory are set against the prediction."""
    path = tmp_path / "run.log"
    path.write_text(MEGATRON_DUMP + megatron_log([9000.0] * 6))
    configured = read_configured(Question("h100-80g"), str(path))
    assert configured.measured == {"step_time": 9.0, "memory": 44 << 30}
    assert configured.question.machine == "h100-80g:32"
    assert configured.question.options.global_batch_size == 256
    assert configured.question.model.layers == 32
    (tmp_path / "titan.toml").write_text(TORCHTITAN_TOML)
    (tmp_path / "titan.log").write_text(torchtitan_log([820] * 6))
    titan = read_configured(Question("h100-80g"), str(tmp_path / "titan.log"))
    assert titan.question.machine == "h100-80g:256"
    assert titan.measured["step_time"] == pytest.approx(256 * 8192 / (820 * 256))


def test_a_plan_that_cannot_be_is_blamed_on_the_file(script):
    path = script(MODEL + RUN.replace("parallel-size 2", "parallel-size 3") + "--vocab-size 512")
    with pytest.raises(InputError) as error:
        plan_explain(Question("cpu-host"), config=path)
    assert {problem.source for problem in error.value.problems} == {path}


def test_a_pin_that_was_typed_is_blamed_on_the_command_line(script):
    path = script(MODEL + RUN + "--vocab-size 512")
    with pytest.raises(InputError) as error:
        plan_explain(Question("cpu-host", pins=("tp=3",)), config=path)
    assert "--pin" in {problem.source for problem in error.value.problems}
