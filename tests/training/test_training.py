"""rematerialize, restore and rewrite_function: bad input, life cycle, batch shapes, memory."""

import gc
import itertools
import os
import pickle
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.config import disable_op_determinism

import checkmate_tf
from checkmate_tf import tf_private
from checkmate_tf.errors import (
    BatchError,
    BudgetError,
    CheckmateError,
    InfeasibleBudgetError,
    ProfileError,
    SolverError,
    UnsupportedModelError,
)
from checkmate_tf.executors.graph import step as graph_step
from checkmate_tf.profiling.memory import record_peak_bytes
from checkmate_tf.training.installed_step import InstalledStep
from checkmate_tf.training.prefetched import count_prefetched_batches
from checkmate_tf.training.rematerialize import find_installed_step
from experiments.keras_users.compare import RecomputeForward, relative_difference
from experiments.keras_users.models import (
    conv_net,
    dense_net,
    frozen,
    images,
    own_step,
    tokens,
    transformer_block,
    vectors,
)

QUICK: dict[str, Any] = {
    "budget": "1000%",
    "options": checkmate_tf.Options(solver=RecomputeForward(), costs="flops"),
    "measure": False,
}


def rematerialized(model: keras.Model, batch_size: int = 8) -> keras.Model:
    checkmate_tf.rematerialize(model, batch_size=batch_size, **QUICK)
    return model


def seeded(make: Any) -> keras.Model:
    keras.utils.set_random_seed(7)
    return make()


def fitted(model: keras.Model, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(8)
    data = images() if len(model.input_shape) == 4 else vectors()
    model.fit(**data, **({"batch_size": 8, "verbose": 0, "shuffle": False} | options))
    return model


def furthest(mine: keras.Model, other: keras.Model) -> float:
    pairs = zip(mine.variables, other.variables, strict=True)
    return max(relative_difference(np.asarray(a), np.asarray(b)) for a, b in pairs)


@pytest.mark.parametrize("budget", [0, -5, "0%", "-3GiB", "much", "6 elephants", float("nan"), True, None])
def test_unreadable_budget(budget: Any) -> None:
    model = dense_net()
    with pytest.raises(BudgetError, match="budget"):
        checkmate_tf.rematerialize(
            model, batch_size=8, budget=budget, options=checkmate_tf.Options(costs="flops"), measure=False
        )
    assert find_installed_step(model) is None


@pytest.mark.parametrize(
    ("argument", "kind"),
    [
        ({"time_limit_s": None}, SolverError),
        ({"time_limit_s": float("nan")}, SolverError),
        ({"time_limit_s": -1.0}, SolverError),
        ({"options": "free"}, CheckmateError),
        ({"measure": "no"}, CheckmateError),
        ({"progress": None}, CheckmateError),
        ({"data": "hello"}, BatchError),
        ({"data": np.float32(1.0)}, BatchError),
        ({"batch_size": 10**9}, BatchError),
        ({"budget": "0%"}, BudgetError),
    ],
)
@pytest.mark.parametrize("is_planned", [False, True])
def test_wrong_arguments_are_refused_at_once(argument: dict[str, Any], kind: type[Exception], is_planned: bool) -> None:
    model = rematerialized(dense_net()) if is_planned else dense_net()
    installed = find_installed_step(model)
    options = {"batch_size": None if "data" in argument else 8, "budget": "60%"} | argument
    with pytest.raises(kind, match=next(iter(argument)) if "data" not in argument else "no batch could be made"):
        checkmate_tf.rematerialize(model, **options)
    assert find_installed_step(model) is installed


@pytest.mark.parametrize(
    ("option", "kind"),
    [
        ({"solver": None}, SolverError),
        ({"costs": {}}, ProfileError),
        ({"seed": 2.5}, SolverError),
        ({"order": np.array(["fixed", "free"])}, SolverError),
    ],
)
def test_wrong_options_are_refused_at_once(option: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(option))):
        checkmate_tf.Options(**option)


def test_numbers_of_numpy_are_numbers() -> None:
    numbers: dict[str, Any] = {
        "batch_size": np.int64(8),
        "time_limit_s": np.float32(5),
        "options": checkmate_tf.Options(costs="flops", seed=np.int64(-3)),
    }
    plan = checkmate_tf.rematerialize(dense_net(), budget="100%", measure=False, **numbers)
    assert plan.schedule.order


def test_within_a_function_nothing_is_planned() -> None:
    model = dense_net()
    raised = []

    @tf.function
    def plan() -> None:
        for call in (
            lambda: checkmate_tf.rematerialize(model, batch_size=8, budget="60%"),
            lambda: checkmate_tf.estimate(model, batch_size=8),
            lambda: checkmate_tf.pareto(model, batch_size=8),
            lambda: checkmate_tf.max_batch_size(model),
            lambda: checkmate_tf.best_batch(model, effective_batch_size=8),
            lambda: checkmate_tf.rewrite_function(None, budget="60%"),
        ):
            with pytest.raises(UnsupportedModelError, match="call this from plain Python") as caught:
                call()
            raised.append(caught)

    plan()
    assert len(raised) == 6


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8", True, None])
def test_bad_batch_size(batch_size: Any) -> None:
    with pytest.raises(BatchError, match="batch_size"):
        checkmate_tf.rematerialize(dense_net(), batch_size=batch_size, budget="60%")


def test_batch_that_does_not_fit_the_model() -> None:
    with pytest.raises(BatchError, match=r"\(8, 3\)"):
        checkmate_tf.rematerialize(
            dense_net(),
            data=(np.zeros((8, 3), "float32"), np.zeros(8, "int64")),
            budget="60%",
            options=checkmate_tf.Options(costs="flops"),
        )
    with pytest.raises(BatchError, match=r"the data has no y: pass data=\(x, y\)"):
        checkmate_tf.rematerialize(
            dense_net(), data=np.zeros((8, 8), "float32"), budget="60%", options=checkmate_tf.Options(costs="flops")
        )
    with pytest.raises(BatchError, match="batch_size is 8, but the first batch of data has 4 rows"):
        checkmate_tf.rematerialize(dense_net(), data=(np.zeros((4, 8)), np.zeros(4)), batch_size=8, budget="60%")


def test_models_that_cannot_be_rematerialized() -> None:
    uncompiled = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    unbuilt = keras.Sequential([keras.layers.Dense(4)])
    unbuilt.compile("sgd", "mse")
    open_shape = keras.Sequential([keras.Input((None, 8)), keras.layers.Dense(4)])
    open_shape.compile("sgd", "mse")
    without_weights = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, trainable=False)])
    without_weights.compile("sgd", "mse")
    for model, message in [
        (uncompiled, "not compiled"),
        (unbuilt, "not built"),
        (without_weights, "no trainable weights"),
        (lambda x: x, "not a keras.Model"),
    ]:
        with pytest.raises(UnsupportedModelError, match=message):
            checkmate_tf.rematerialize(model, batch_size=8, budget="60%")
    with pytest.raises(BatchError, match="open shape"):
        checkmate_tf.rematerialize(open_shape, batch_size=8, budget="60%")


def test_models_of_keras_2_are_named() -> None:
    """A stand-in: tf_keras need not be installed."""
    kind = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential"})
    of_user = type("Net", (kind,), {"__module__": "nets"})()
    for refuse in (
        lambda: checkmate_tf.rematerialize(of_user, batch_size=8, **QUICK),
        lambda: checkmate_tf.estimate(of_user, batch_size=8),
        lambda: checkmate_tf.max_batch_size(of_user, budget="1GiB"),
        lambda: checkmate_tf.MemoryReport().set_model(of_user),
    ):
        with pytest.raises(UnsupportedModelError, match=r"Net is a model of Keras 2 \(tf_keras\).*`import keras`"):
            refuse()


def test_unknown_solver_and_costs() -> None:
    with pytest.raises(SolverError, match="there is no solver 'magic'"):
        checkmate_tf.rematerialize(
            dense_net(),
            batch_size=8,
            budget="100%",
            options=checkmate_tf.Options(solver="magic", costs="flops"),
            measure=False,
        )
    with pytest.raises(ProfileError, match="guess"):
        checkmate_tf.rematerialize(
            dense_net(), batch_size=8, budget="100%", options=checkmate_tf.Options(costs="guess")
        )


def test_infeasible_budget_names_the_least_known_and_changes_nothing() -> None:
    model = seeded(conv_net)
    before = [np.asarray(v) for v in model.variables]
    options: dict[str, Any] = {
        "batch_size": 64,
        "options": checkmate_tf.Options(costs="flops"),
        "measure": False,
        "time_limit_s": 10,
    }
    with pytest.raises(InfeasibleBudgetError, match=r"operation .*\(layer .*least budget known to work is") as raised:
        checkmate_tf.rematerialize(model, budget="20%", **options)
    assert "because of the loss" not in str(raised.value)
    assert find_installed_step(model) is None
    assert all(np.array_equal(a, b) for a, b in zip(before, model.variables, strict=True))
    least = raised.value.least_budget_bytes
    assert least is not None
    plan = checkmate_tf.rematerialize(model, budget=least, **options)
    assert plan.predicted_peak_bytes <= least < plan.stock_peak_bytes


def test_an_infeasible_budget_says_where_the_loss_is_the_limit() -> None:
    """Logits of 4096 classes for 64 rows take a mebibyte, and the layer before them 2 KiB."""
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), keras.layers.Dense(4096)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    with pytest.raises(InfeasibleBudgetError, match=r"because of the loss: .* 1\.00 MiB at once") as raised:
        checkmate_tf.rematerialize(
            model,
            batch_size=64,
            budget="60%",
            options=checkmate_tf.Options(costs="flops"),
            measure=False,
            time_limit_s=5,
        )
    assert "(float32 [64, 4096])" in str(raised.value)


def test_plan_tells_the_parts() -> None:
    model = seeded(conv_net)
    plan = checkmate_tf.rematerialize(model, batch_size=8, **QUICK)
    weights = sum(np.asarray(v).nbytes for v in model.variables)
    assert plan.resident.parameters == weights
    # SGD with momentum: a buffer like each trainable weight, the iteration count and the learning rate.
    trainable = sum(np.asarray(v).nbytes for v in model.trainable_variables)
    assert plan.resident.optimizer == trainable + 8 + 4
    assert plan.resident.batch == 8 * 8 * 8 * 3 * 4 + 8 * 8
    assert plan.resident.prefetched == count_prefetched_batches() * plan.resident.batch
    assert plan.graph.resident_bytes == plan.resident.total
    assert plan.measured_peak_bytes is None
    for words in ("The budget is", "optimizer state", "are computed again", "Solver RecomputeForward", "conv2d"):
        assert words in str(plan)
    assert "(measured)" not in str(plan)


def test_two_runs_are_bit_identical() -> None:
    first, second = (fitted(rematerialized(seeded(conv_net))) for _ in range(2))
    for mine, other in zip(first.variables, second.variables, strict=True):
        assert np.array_equal(np.asarray(mine), np.asarray(other))


@pytest.fixture
def determinism() -> Iterator[None]:
    tf.config.experimental.enable_op_determinism()
    yield
    disable_op_determinism()


def test_deterministic_steps_are_bit_identical_and_as_stock(determinism: None) -> None:
    def trained(*, rewritten: bool) -> list[np.ndarray]:
        model = seeded(transformer_block)
        plan = checkmate_tf.rematerialize(model, batch_size=8, **QUICK) if rewritten else None
        assert plan is None or plan.recomputed
        keras.utils.set_random_seed(8)
        model.fit(**tokens(), batch_size=8, epochs=2, verbose=0)  # batches in a random order, dropout
        return [np.asarray(variable) for variable in model.variables]

    first, second, stock = trained(rewritten=True), trained(rewritten=True), trained(rewritten=False)
    for mine, again, theirs in zip(first, second, stock, strict=True):
        assert np.array_equal(mine, again)
        assert relative_difference(theirs, mine) <= 1e-6


@pytest.mark.parametrize("make", [conv_net, transformer_block])
def test_gradients_of_one_step(make: Any) -> None:
    """After one step of `fit` the momentum of SGD is the gradients, times the learning rate of 1."""
    data = images(rows=8) if make is conv_net else {key: array[:8] for key, array in tokens().items()}
    gradients = []
    for rewritten in (False, True):
        model = seeded(make)
        _recompile(model, learning_rate=1.0, momentum=0.9)
        if rewritten:
            rematerialized(model)
        keras.utils.set_random_seed(8)
        model.fit(**data, batch_size=8, verbose=0)
        gradients.append([np.asarray(momentum) for momentum in model.optimizer.momentums])
    assert any(np.any(gradient) for gradient in gradients[0])
    assert max(relative_difference(*pair) for pair in zip(*gradients, strict=True)) <= 1e-5


def test_measuring_leaves_the_state_alone() -> None:
    model, untouched = seeded(conv_net), seeded(conv_net)
    fitted(model), fitted(untouched)
    state = [np.asarray(v) for v in (*model.variables, *model.optimizer.variables, *model.metrics_variables)]
    plan = checkmate_tf.rematerialize(model, batch_size=8, **(QUICK | {"measure": True}))
    now = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    assert all(np.array_equal(before, np.asarray(after)) for before, after in zip(state, now, strict=True))
    assert plan.measured_peak_bytes is not None
    assert furthest(fitted(model), fitted(untouched)) <= 1e-5


def test_restore() -> None:
    model, stock = rematerialized(seeded(conv_net)), seeded(conv_net)
    checkmate_tf.restore(model)
    assert "train_step" not in model.__dict__
    assert furthest(fitted(model), fitted(stock)) == 0
    checkmate_tf.restore(model)


def test_plans_that_were_taken_out_leave_nothing_behind() -> None:
    model = seeded(dense_net)
    left = []
    for _ in range(4):
        rematerialized(model).train_on_batch(*(array[:8] for array in vectors().values()))
        checkmate_tf.restore(model)
        gc.collect()
        graphs = sum(isinstance(each, tf.Graph) for each in gc.get_objects())
        left.append(
            (graphs, threading.active_count(), *(len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")))
        )
    assert left[1] == left[2] == left[3], left


def test_several_batch_sizes_side_by_side() -> None:
    model, stock = rematerialized(rematerialized(seeded(conv_net)), 5), seeded(conv_net)
    for each in (model, stock):
        fitted(each)
        fitted(each, batch_size=5)
        fitted(each, batch_size=7)  # 5 x 7 + 5: a planned and an unplanned size, both behind an open batch dimension
    assert furthest(model, stock) <= 1e-5
    assert sorted(entry.spec.batch_size for entry in find_installed_step(model).batches.entries.values()) == [5, 7, 8]


def test_a_larger_batch_that_no_plan_fits_is_said_once_or_raised() -> None:
    x, y = images()["x"], images()["y"]
    options: dict[str, Any] = {
        "batch_size": 4,
        "budget": "100%",
        "options": checkmate_tf.Options(costs="flops"),
        "measure": False,
    }
    model = conv_net()
    checkmate_tf.rematerialize(model, **options)
    with pytest.warns(RuntimeWarning, match="above the budget") as warned:
        model.fit(x[:18], y[:18], batch_size=9, verbose=0)
    assert ["above the budget" in str(each.message) for each in warned] == [False, True]
    assert "instead of float32[4, 8, 8, 3]" in str(warned[0].message)
    assert {Path(each.filename) for each in warned} == {Path(__file__)}
    model = conv_net()
    checkmate_tf.rematerialize(model, **options, on_infeasible="raise")
    with pytest.warns(RuntimeWarning, match="is planned now"), pytest.raises(InfeasibleBudgetError):
        model.fit(x[:9], y[:9], batch_size=9, verbose=0)


def test_eager_models_are_refused_at_once_and_train_stock_when_they_become_so() -> None:
    model, stock = seeded(lambda: dense_net(run_eagerly=True)), seeded(lambda: dense_net(run_eagerly=True))
    with pytest.raises(UnsupportedModelError, match="compile it with run_eagerly=False"):
        rematerialized(model)
    model.run_eagerly = False
    rematerialized(model)
    model.run_eagerly = True
    with pytest.warns(RuntimeWarning, match="stock training step"):
        fitted(model)
    assert furthest(model, fitted(stock)) == 0


def _recompile(model: keras.Model, *, learning_rate: float = 0.01, momentum: float = 0.0) -> None:
    optimizer = keras.optimizers.SGD(learning_rate, momentum=momentum)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])


def _freeze(model: keras.Model) -> None:
    model.layers[1].trainable = False
    _recompile(model)


def _lower_precision(model: keras.Model) -> None:
    for layer in model.layers[1:-2]:
        layer.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    model.make_train_function(force=True)


@pytest.mark.parametrize(
    ("change", "what", "tolerance"),
    [
        (_recompile, "the optimizer", 1e-5),
        (_freeze, "the trainable weights", 1e-5),
        (_lower_precision, "a dtype policy", 1e-1),  # as far as five steps in bfloat16 are from each other
    ],
)
def test_changed_model_is_planned_again(change: Any, what: str, tolerance: float) -> None:
    model, stock = rematerialized(seeded(conv_net)), seeded(conv_net)
    for each in (model, stock):
        fitted(each)
    change(stock)
    with pytest.warns(RuntimeWarning, match=f"{what}.* changed: its step is planned again"):
        _fitted_after(change, model)
    assert furthest(model, fitted(stock)) <= tolerance


def _fitted_after(change: Any, model: keras.Model) -> None:
    change(model)
    fitted(model)


def test_save_load_clone_pickle(tmp_path: Path) -> None:
    model, stock = fitted(rematerialized(seeded(dense_net))), fitted(seeded(dense_net))
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    with pytest.warns(RuntimeWarning, match="a pickled copy of model .* trains with the stock step") as warned:
        pickled = pickle.dumps({"estimator": model})
    assert [warning.category for warning in warned].count(RuntimeWarning) == 1
    copies = [keras.models.load_model(tmp_path / "model.keras"), pickle.loads(pickled)["estimator"]]
    clone = dense_net()
    clone.load_weights(tmp_path / "model.weights.h5")
    assert furthest(clone, model) == 0
    assert "train_step" not in keras.models.clone_model(model).__dict__
    fitted(stock)
    for copy in copies:
        assert "train_step" not in copy.__dict__
        assert furthest(fitted(copy), stock) <= 1e-5
    assert furthest(fitted(model), stock) <= 1e-5


def test_what_is_installed_or_removed_in_the_middle_of_fit_takes_effect_there() -> None:
    model, stock = rematerialized(seeded(dense_net)), seeded(dense_net)
    changes = {3: checkmate_tf.restore, 5: rematerialized, 6: rematerialized}
    trained = []

    class Change(keras.callbacks.Callback):
        number = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            trained.append(find_installed_step(model) is not None and isinstance(model.train_function, InstalledStep))
            self.number += 1
            changes.get(self.number, id)(model)

    fitted(model, epochs=2, callbacks=[Change()])
    fitted(stock, epochs=2)
    assert trained == [True, True, True, False, False, *[True] * (len(trained) - 5)]
    assert len(trained) >= 8
    assert furthest(model, stock) <= 1e-5
    checkmate_tf.restore(model)
    assert not {"make_train_function", "__reduce__"} & set(vars(model))
    assert pickle.loads(pickle.dumps(model)).name == model.name  # without a warning


def test_callbacks(tmp_path: Path) -> None:
    model, stock = rematerialized(seeded(conv_net)), seeded(conv_net)
    for each in (model, stock):
        callbacks = [
            keras.callbacks.ModelCheckpoint(tmp_path / "at_{epoch}.keras"),
            keras.callbacks.BackupAndRestore(tmp_path / "backup"),
            keras.callbacks.ReduceLROnPlateau("loss", patience=0, min_delta=100),
            keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
        ]
        fitted(each, epochs=2, callbacks=callbacks)
    assert furthest(model, stock) <= 1e-5
    saved = keras.models.load_model(tmp_path / "at_2.keras").trainable_variables  # Keras draws new dropout seeds
    for mine, theirs in zip(model.trainable_variables, saved, strict=True):
        assert relative_difference(np.asarray(mine), np.asarray(theirs)) <= 1e-5


@pytest.mark.parametrize("call", ["rematerialize", "pareto", "estimate", "max_batch_size", "best_batch"])
def test_an_interrupt_within_a_context_manager_leaves_eager_mode(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come in the first or last line of one of TensorFlow's, which then never leaves what it entered."""
    model, entered = dense_net(), list[tf.Graph]()

    def enter(*_: Any, **__: Any) -> None:
        entered.append(tf.Graph())
        eager = tf_private.context.context()
        eager.context_switches.push(False, entered[-1].as_default, None)
        eager._thread_local_data.is_eager = False
        eager._thread_local_data.scope_name = "left/"
        tf_private.ops._default_graph_stack.stack.append(entered[-1])
        raise KeyboardInterrupt

    arguments: dict[str, dict[str, Any]] = {
        "rematerialize": {
            "batch_size": 8,
            "budget": "60%",
            "options": checkmate_tf.Options(costs="flops"),
            "measure": False,
        },
        "pareto": {"batch_size": 8, "options": checkmate_tf.Options(costs="flops"), "measure": False},
        "estimate": {"batch_size": 8},
        "max_batch_size": {"budget": "4MiB", "options": checkmate_tf.Options(costs="flops"), "measure": False},
        "best_batch": {"budget": "4MiB", "effective_batch_size": 4, "options": checkmate_tf.Options(costs="flops")},
    }
    for module in ("executors.graph.step", "training.traced_model"):
        monkeypatch.setattr(f"checkmate_tf.{module}.extract", enter)
    with pytest.raises(KeyboardInterrupt):
        getattr(checkmate_tf, call)(model, **arguments[call])
    assert entered
    assert tf.executing_eagerly()
    assert tf.compat.v1.get_default_graph() is not entered[-1]
    monkeypatch.undo()
    rematerialized(model)
    fitted(model)


def test_of_two_threads_that_plan_one_waits_until_the_other_has_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured while another thread runs steps is more than what a step takes."""
    events: list[str] = []
    run_steps = graph_step.run_steps

    def measure(*arguments: Any, **options: Any) -> Any:
        events.append(f"begin {threading.get_ident()}")
        time.sleep(0.1)
        try:
            return run_steps(*arguments, **options)
        finally:
            events.append(f"end {threading.get_ident()}")

    monkeypatch.setattr(graph_step, "run_steps", measure)
    options: dict[str, Any] = {
        "batch_size": 8,
        "budget": "100%",
        "options": checkmate_tf.Options(costs="flops"),
        "progress": False,
    }
    threads = [
        threading.Thread(target=checkmate_tf.rematerialize, args=(model,), kwargs=options)
        for model in (dense_net(), dense_net())
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({event.split()[1] for event in events}) == 2
    changes = sum(before.split()[1] != after.split()[1] for before, after in itertools.pairwise(events))
    assert changes == 1  # all of one, then all of the other


def test_two_models_in_two_threads() -> None:
    stock = [fitted(seeded(conv_net)), fitted(seeded(dense_net))]
    models = [rematerialized(seeded(conv_net)), rematerialized(seeded(dense_net))]
    arguments = {"batch_size": 8, "verbose": 0, "shuffle": False}
    threads = [
        threading.Thread(target=model.fit, kwargs=data | arguments)
        for model, data in zip(models, [images(), vectors()], strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The dropout seed of the first model is its own; nothing is drawn from the process.
    assert all(furthest(mine, other) <= 1e-5 for mine, other in zip(models, stock, strict=True))


def test_original_names_are_kept_and_copies_are_named() -> None:
    model = rematerialized(conv_net())
    (entry,) = find_installed_step(model).batches.entries.values()
    names = {node.name for node in entry.functions[0].graph_def.node}
    copies = [name for name in names if "/recompute_" in name]
    assert copies
    assert all(name.rpartition("/recompute_")[0] in names for name in copies)


def test_instance_level_train_step_is_rewritten_and_put_back() -> None:
    model = seeded(own_step)
    mine = lambda data: type(model).train_step(model, data)  # noqa: E731
    model.train_step = mine
    rematerialized(model)
    checkmate_tf.restore(model)
    assert model.train_step is mine


@pytest.mark.measures_memory
def test_peak_within_budget() -> None:
    """By the runtime's own allocation records, tensors of megabytes."""
    inputs = keras.Input((64, 64, 3))
    hidden = inputs
    for _ in range(6):
        hidden = keras.layers.Conv2D(16, 3, padding="same", activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(hidden)))
    model.compile("sgd", "mse")
    plan = checkmate_tf.rematerialize(
        model,
        batch_size=16,
        budget="65%",
        options=checkmate_tf.Options(solver="stage_annealing", costs="measured"),
        time_limit_s=10,
    )
    assert plan.measured_peak_bytes is not None
    assert plan.measured_peak_bytes <= plan.budget_bytes * 1.02
    assert plan.recomputed
    (entry,) = find_installed_step(model).batches.entries.values()
    recorded = record_peak_bytes(entry.functions[0].function, [tf.zeros((16, 64, 64, 3)), tf.zeros((16, 4))])
    assert plan.resident.total + recorded <= plan.budget_bytes * 1.02


@pytest.mark.measures_memory
def test_an_embedding_is_planned_by_measurement() -> None:
    inputs = keras.Input((16,), dtype="int64")
    hidden = keras.layers.Dense(32, activation="gelu")(keras.layers.Embedding(50, 32)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    plan = checkmate_tf.rematerialize(
        model, batch_size=64, budget="95%", options=checkmate_tf.Options(costs="flops"), time_limit_s=10
    )
    assert plan.measured_peak_bytes is not None


@pytest.mark.parametrize("jit_compile", [False, True])
def test_batches_that_are_still_to_come_need_free_bytes(monkeypatch: pytest.MonkeyPatch, jit_compile: bool) -> None:
    for executor in ("executors.graph.step", "executors.xla.compilers"):
        monkeypatch.setattr(f"checkmate_tf.{executor}.find_free_bytes", lambda device, margin: 1 << 30)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    plan = checkmate_tf.rematerialize(
        model, batch_size=1024, budget="auto", options=checkmate_tf.Options(costs="flops", margin=0), measure=False
    )
    weights_bytes = 4 * (8 * 4 + 4)
    assert 1 << 30 < plan.budget_bytes - weights_bytes <= (1 << 30) + 64  # counters and the learning rate
    assert plan.resident.batch == 4 * 1024 * (8 + 4)


def test_budget_auto() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        plan = checkmate_tf.rematerialize(dense_net(), batch_size=8, **(QUICK | {"budget": "auto"}))
    assert plan.budget_bytes > plan.stock_peak_bytes


def test_frozen_layers_have_no_gradients() -> None:
    model = rematerialized(seeded(frozen))
    weights = np.asarray(model.layers[1].kernel)
    fitted(model)
    assert np.array_equal(weights, model.layers[1].kernel)


def test_train_on_batch_runs_the_plan_made_for_fit() -> None:
    """Keras hands (x, y, None) to the one where the other has (x, y)."""
    model, data = dense_net(), vectors()
    x, y = data["x"][:8], data["y"][:8]
    checkmate_tf.rematerialize(model, data=(x, y), **QUICK)
    rewrite = find_installed_step(model)
    assert rewrite is not None
    planned = dict(rewrite.batches.entries)
    model.train_on_batch(x, y)
    assert rewrite.batches.entries == planned
    model.train_on_batch(x, y, sample_weight=np.ones(8))  # its stock step keeps within ten times the peak
    assert len(rewrite.batches.entries) == 2
