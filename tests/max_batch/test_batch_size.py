"""max_batch_size: what it finds is run and measured; bad input; steps in processes of their own."""

import json
import os
import re
from pathlib import Path
from stat import S_IMODE
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from checkmate_tf import cli, restore
from checkmate_tf.errors import BatchError, BudgetError, InfeasibleBudgetError, SearchInterrupt, UnsupportedModelError
from checkmate_tf.graph import Graph
from checkmate_tf.max_batch import max_batch_size as module
from checkmate_tf.max_batch.max_batch_size import find_allowed_overhead, max_batch_size
from checkmate_tf.max_batch.modelled_step import ModelledStep
from checkmate_tf.max_batch.search import SizeSearch, Trial
from checkmate_tf.max_batch.sized_step import Axis, SizedStep
from checkmate_tf.measurement import process
from checkmate_tf.measurement.process import run_step_apart
from checkmate_tf.planning.attempt import make_solution
from checkmate_tf.planning.options import Options, Request
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate_stock
from checkmate_tf.solvers import Solution
from checkmate_tf.training.rematerialize import find_installed_step
from checkmate_tf.training.traced_model import trace_model

MIB = 2**20
QUICK: dict[str, Any] = {"options": Options(costs="flops"), "time_limit_s": 6.0}
OPTIMIZER = {"optimizer": "sgd", "loss": "sparse_categorical_crossentropy", "jit_compile": False}

MODELS_FILE = """
import keras
from keras import layers

def chain():
    convolutions = [layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(7)]
    model = keras.Sequential(
        [keras.Input((32, 32, 3)), *convolutions, layers.GlobalAveragePooling2D(), layers.Dense(4, "softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    return model
"""


def chain(shape: tuple[int | None, ...] = (32, 32, 3), *, num_layers: int = 10) -> keras.Model:
    """Convolutions whose outputs take 32 KiB a row at 32 x 32."""
    keras.utils.set_random_seed(1)
    convolutions = [layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(num_layers)]
    head = [layers.GlobalAveragePooling2D(), layers.Dense(4, "softmax")]
    model = keras.Sequential([keras.Input(shape), *convolutions, *head])
    model.compile(**OPTIMIZER)
    return model


@pytest.mark.measures_memory
def test_the_largest_batch_runs_within_the_budget_and_the_stock_step_does_not() -> None:
    model = chain(num_layers=6)
    found = max_batch_size(model, budget=32 * MIB, axis=Axis("batch", multiple_of=8), **QUICK)
    assert found.confirmed
    assert found.stock_size is not None
    assert found.size > found.stock_size
    assert found.num_solves <= 10
    assert found.plan.measured_peak_bytes is not None
    assert found.plan.measured_peak_bytes <= 32 * MIB
    assert found.plan.overhead <= find_allowed_overhead(found.plan.graph, "one forward pass")
    assert find_installed_step(model) is None
    # The stock step of this batch, really run.
    stock = trace_model(chain(num_layers=6), batch_size=found.size)
    run = run_step_apart(
        stock.function, stock.spec.flat, stock.model.variables, resident_bytes=stock.resident.total,
        predicted_bytes=simulate_stock(stock.extract().graph).peak_bytes, timeout_s=120,
    )  # fmt: skip
    assert run.failure or (run.measured_peak_bytes or 0) > 32 * MIB
    # The installed step trains as the stock step does.
    x = np.random.default_rng(0).normal(size=(found.size, 32, 32, 3)).astype("float32")
    y = np.arange(found.size) % 4
    plain = chain(num_layers=6)
    plain.fit(x, y, batch_size=found.size, verbose=0)
    # It ran in a process whose pool had a free region for it, which it gets here, too.
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    assert found.install() is found.plan
    assert tf.config.experimental.get_memory_info("CPU:0")["peak"] - before >= found.plan.measured_peak_bytes
    model.fit(x, y, batch_size=found.size, verbose=0)
    assert find_installed_step(model) is not None
    for mine, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
    restore(model)
    assert find_installed_step(model) is None
    assert f"{found.size}, confirmed" in str(found)
    assert found.beyond == f"{found.size + 8}, the next: above the budget"
    assert found.beyond in str(found)


@pytest.mark.parametrize("axis", ["image", "height"])
def test_images_of_any_size_are_modelled(axis: Any) -> None:
    width = None if axis == "image" else 96
    model = chain((None, width, 3), num_layers=5)
    found = max_batch_size(
        model, budget=24 * MIB, batch_size=2, axis=Axis(axis, maximum=512, multiple_of=8), measure=False, **QUICK
    )
    assert not found.confirmed
    assert found.size % 8 == 0
    assert found.batch_size == 2
    # Traced at the very size, nothing is modelled.
    same = chain((found.size, width or found.size, 3), num_layers=5)
    graph = trace_model(same, batch_size=2).extract().graph
    assert found.plan.stock_peak_bytes == pytest.approx(simulate_stock(graph).peak_bytes, rel=0.01)


def decoder(length: int | None = None) -> keras.Model:
    """A block of causal attention over tokens, and logits of 256 for each."""
    keras.utils.set_random_seed(1)
    tokens = keras.Input((length,), dtype="int32")
    hidden = layers.Embedding(256, 32)(tokens)
    hidden = layers.Add()([hidden, layers.MultiHeadAttention(2, 16)(hidden, hidden, use_causal_mask=True)])
    hidden = layers.Add()([hidden, layers.Dense(32)(layers.Dense(64, activation="gelu")(hidden))])
    model = keras.Model(tokens, layers.Dense(256)(hidden))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def test_sequences_of_any_length_are_modelled() -> None:
    """A causal model's mask and its attention grow with the square of the length."""
    found = max_batch_size(
        decoder(),
        budget=2 * MIB,
        batch_size=2,
        axis=Axis("length", maximum=512, multiple_of=16),
        measure=False,
        **QUICK,
    )
    assert found.stock_size is not None
    assert 16 < found.stock_size < found.size < 512
    graph = trace_model(decoder(found.size), batch_size=2).extract().graph
    assert found.plan.stock_peak_bytes == pytest.approx(simulate_stock(graph).peak_bytes, rel=0.01)


def test_the_budget_of_the_device_and_the_largest_size_allowed() -> None:
    model = chain(num_layers=5)
    found = max_batch_size(model, axis=Axis("batch", maximum=16), max_overhead="10%", measure=False, **QUICK)
    assert found.size == 16
    assert found.beyond == "the largest allowed"
    assert found.plan.overhead == 0
    assert "an overhead of 10%" in str(found)
    total = int(re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[0]) * 1024
    assert 16 * 2**20 < found.budget_bytes < total


@pytest.mark.parametrize(
    ("budget", "options", "error", "message"),
    [
        ("60%", {}, BudgetError, "grows with the size"),
        ("much", {}, BudgetError, "much"),
        ("1GiB", {"max_overhead": "a little"}, BudgetError, "one forward pass"),
        ("1GiB", {"max_overhead": -0.1}, BudgetError, "max_overhead"),
        ("1GiB", {"axis": "depth"}, BatchError, "height"),
        ("1GiB", {"axis": "height"}, BatchError, "pass batch_size"),
        ("1GiB", {"axis": "height", "batch_size": 2}, BatchError, "no input whose height is open"),
        ("1GiB", {"batch_size": 2}, BatchError, "pass batch_size"),
        (1000, {}, InfeasibleBudgetError, "parameters"),
    ],
)
def test_bad_input(budget: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        max_batch_size(chain(), budget=budget, **QUICK, **options)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"minimum": 0}, "minimum is 0"), ({"minimum": 9, "maximum": 8}, "no multiple of 1")],
)
def test_sizes_that_are_none(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        Axis("batch", **sizes)


def test_models_that_cannot_be_searched() -> None:
    with pytest.raises(UnsupportedModelError, match="not compiled"):
        max_batch_size(keras.Sequential([keras.Input((3,)), layers.Dense(2)]), budget="1GiB")


class Moody(layers.Layer):
    """More work for large batches."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.tanh(keras.ops.tanh(inputs)) if (inputs.shape[0] or 0) > 10 else inputs


def test_a_graph_that_changes_with_the_batch_is_refused() -> None:
    model = keras.Sequential([keras.Input((8,)), layers.Dense(16), Moody(), layers.Dense(2, "softmax")])
    model.compile(**OPTIMIZER)
    with pytest.raises(UnsupportedModelError, match="changes with the batch"):
        max_batch_size(model, budget="1GiB", **QUICK)


@pytest.mark.measures_memory
def test_a_first_batch_that_does_not_fit() -> None:
    graph = trace_model(chain(num_layers=4), batch_size=1).extract().graph
    with pytest.raises(InfeasibleBudgetError, match="batch 1, the smallest allowed") as caught:
        max_batch_size(chain(num_layers=4), budget=graph.resident_bytes + 50_000, **QUICK)
    assert caught.value.proved
    assert caught.value.least_budget_bytes is not None
    assert graph.resident_bytes + 50_000 < caught.value.least_budget_bytes
    assert caught.value.least_budget_bytes <= simulate_stock(graph).peak_bytes


def test_the_least_budget_that_is_named_works() -> None:
    """The least that any node needs is what Adam's update needs: a bound, and no budget that works."""

    def build() -> keras.Model:
        units = [layers.Dense(32, "relu") for _ in range(3)]
        model = keras.Sequential([keras.Input((32,)), *units, layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        return model

    always_bytes = 3 * sum(4 * weight.shape.num_elements() for weight in build().trainable_weights)
    options: dict[str, Any] = {
        "max_overhead": 0.05,
        "options": Options(costs="flops"),
        "time_limit_s": 2,
        "measure": False,
    }
    with pytest.raises(InfeasibleBudgetError, match="adam") as caught:
        max_batch_size(build(), budget=always_bytes + 1000, **options)
    assert caught.value.least_budget_bytes is not None
    found = max_batch_size(build(), budget=caught.value.least_budget_bytes, **options)
    assert found.plan.predicted_peak_bytes <= caught.value.least_budget_bytes
    assert found.plan.overhead <= 0.05


def test_an_interrupt_gives_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: SizeSearch, trial: Trial) -> None:
        self.trials.append(trial)
        raise KeyboardInterrupt

    monkeypatch.setattr(SizeSearch, "report", stop)
    with pytest.raises(SearchInterrupt, match="largest batch found until then") as caught:
        max_batch_size(chain(num_layers=5), budget=32 * MIB, **QUICK)
    found: Any = caught.value.found
    assert not found.confirmed
    assert len(found.trials) == 1
    assert found.size >= found.stock_size


def test_the_peak_of_a_step_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    modes = set()

    # x is the caller's; a and the product of a with itself, 4 MiB each, are alive at once.
    def step(x: tf.Tensor) -> tf.Tensor:
        modes.update(S_IMODE(folder.stat().st_mode) for folder in tmp_path.glob("checkmate_tf-*"))
        a = tf.nn.softmax(x)
        return tf.reduce_sum(tf.matmul(a, a))

    before = os.umask(0)
    try:
        run = run_step_apart(
            step, [tf.TensorSpec((1024, 1024))], [], resident_bytes=4 * MIB, predicted_bytes=12 * MIB, timeout_s=120
        )
    finally:
        os.umask(before)
    assert modes == {0o700}, "its owner alone reads the folder of the step"
    assert not list(tmp_path.glob("checkmate_tf-*"))
    assert run.failure == ""
    assert run.measured_peak_bytes is not None
    assert 12 * MIB <= run.measured_peak_bytes <= 12.5 * MIB


def test_the_peak_of_a_step_apart_has_tensors_that_the_allocator_does_not_count() -> None:
    """Each of the 48 tensors that the step returns has 128 KiB; the allocator counts from 256 KiB."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [tf.exp(x * number) for number in range(48)]

    run = run_step_apart(
        step, [tf.TensorSpec((128, 256))], [], resident_bytes=MIB // 8, predicted_bytes=6 * MIB, timeout_s=120
    )
    assert run.failure == ""
    assert run.measured_peak_bytes is not None
    assert 6 * MIB <= run.measured_peak_bytes <= 7 * MIB


def test_a_step_that_does_not_survive_is_an_answer() -> None:
    def greedy(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.zeros(tf.cast(tf.cast(x, tf.int64) + 2**46, tf.int64)[None]))

    def aborting(x: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.raw_ops.Abort(error_msg="on purpose")]):
            return x + 1

    apart: dict[str, Any] = {"resident_bytes": 0, "predicted_bytes": 0, "timeout_s": 120}
    assert run_step_apart(greedy, [tf.TensorSpec(())], [], **apart).failure == "out of memory"
    assert run_step_apart(aborting, [tf.TensorSpec(())], [], **apart).failure == "killed by SIGABRT"
    slow = run_step_apart(aborting, [tf.TensorSpec(())], [], **{**apart, "timeout_s": 0.2})
    assert slow.failure == "did not end within 0.2 s"


def test_the_process_of_a_step_is_to_remove_what_was_saved_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it does, where its parent is killed or ended, is tested with the processes of the package."""
    begun: dict[str, Any] = {}

    def refuse(module: str, *arguments: str, **options: Any) -> None:
        begun.update(arguments=arguments, **options)
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(process, "start_process", refuse)
    apart: dict[str, Any] = {"resident_bytes": 0, "predicted_bytes": 0, "timeout_s": 120}
    with pytest.raises(UnsupportedModelError, match="temporarily unavailable; pass measure=False to predict only"):
        run_step_apart(tf.identity, [tf.TensorSpec(())], [], **apart)
    assert begun["folder"] == begun["arguments"][0]
    assert not Path(begun["folder"]).exists()


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_chain.py").write_text(MODELS_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = [
        "max-batch",
        "my_chain:chain",
        "--budget",
        "32MiB",
        "--costs",
        "flops",
        "--no-measure",
        "--time-limit",
        "6",
    ]
    assert cli.main([*arguments, "--json", "--output", "schedule.json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["size"] > data["stock_size"]
    assert data["predicted_peak_bytes"] <= 32 * MIB
    assert all(trial["kind"] == "solve" for trial in data["trials"])
    assert (tmp_path / "schedule.json").exists()
    assert cli.main(["max-batch", "my_chain:chain", "--budget", "1000"]) == 3
    assert "always holds" in capsys.readouterr().err
    arguments = ["plan", "my_chain:chain", "--batch-size", "64", "--budget", "70%", "--costs", "flops", "--no-measure"]
    arguments += ["--time-limit", "4"]
    assert cli.main([*arguments, "--json", "--graph", "graph.json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["predicted_peak_bytes"] <= data["budget_bytes"] < data["stock_peak_bytes"]
    assert cli.main(["solve", "graph.json", "--budget", "70%", "--time-limit", "2"]) == 0
    assert cli.main(["plan", "my_chain:nothing", "--batch-size", "4"]) == 2


@pytest.mark.parametrize("jit_compile", [False, True])
def test_sizes_are_predicted_for_schedules_as_they_run(jit_compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow computes nothing that nothing reads, so that a schedule which does costs less than a solver says."""
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(32, activation="tanh") for _ in range(4)]
    model = keras.Sequential([keras.Input((32,)), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    request, sizes = Request(MIB, 5.0, Options(costs="flops"), measure=False, progress=False), range(8, 65, 8)
    modelled = ModelledStep.of(SizedStep.of(model, "batch"), sizes, MIB, request)
    finder = module._Finder(modelled, request, sizes, MIB, None, None, 0.0)

    def waste(graph: Graph, *args: Any, **kwargs: Any) -> Solution:
        unread = next(i for i, node in enumerate(graph.nodes) if node.recomputable and node.cost)
        return make_solution(graph, Schedule((*make_retain_all_schedule(graph).order, unread)), "wasteful")

    monkeypatch.setattr(module, "solve", waste)
    solution = finder.solve(modelled.find_graph(40), MIB, None)
    assert solution.scheduled.simulation.overhead == 0.0
