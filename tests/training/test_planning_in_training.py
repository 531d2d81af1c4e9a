"""What training plans beside what was planned before it: nothing that it need not, and never without a word."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate_tf
from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.training import step_planner
from checkmate_tf.training.batch_dtypes import convert_dtypes
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.rematerialize import find_installed_step
from experiments.keras_users.compare import RecomputeForward

QUICK: dict[str, Any] = {
    "budget": "1000%",
    "options": checkmate_tf.Options(solver=RecomputeForward(), costs="flops"),
    "measure": False,
}


@pytest.fixture(autouse=True)
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Notes each search for a plan."""
    searches: list[Any] = []
    search = step_planner.find_plan

    def note(step: Any, *args: Any, **kwargs: Any) -> Any:
        searches.append(step)
        return search(step, *args, **kwargs)

    monkeypatch.setattr(step_planner, "find_plan", note)
    return searches


def dense(optimizer: Any = "adam", loss: Any = "mse", **options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(16, "relu"), layers.Dropout(0.3), layers.Dense(1)])
    model.compile(optimizer, loss, **options)
    return model


def language_model() -> keras.Model:
    """Its input is float32, as Keras's default is, and its tokens are integers."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((5,)), layers.Embedding(50, 8), layers.LSTM(8), layers.Dense(50)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def rows(dtype: str = "float32", number: int = 8) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(number, 6)).astype(dtype), random.normal(size=(number, 1)).astype(dtype)


def differences(model: keras.Model, other: keras.Model) -> list[float]:
    pairs = zip(model.variables, other.variables, strict=True)
    return [float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs]


def test_floats_of_another_width_run_what_was_planned(planned: list[Any]) -> None:
    model, stock = dense(), dense()
    checkmate_tf.rematerialize(model, data=rows(), **QUICK)
    for each in (model, stock):
        for _ in range(3):
            each.train_on_batch(*rows("float64"))
    assert len(planned) == 1
    assert max(differences(model, stock)) <= 1e-6


def test_tokens_run_what_was_planned_for_an_input_that_is_float(planned: list[Any]) -> None:
    model, stock = language_model(), language_model()
    checkmate_tf.rematerialize(model, batch_size=8, **QUICK)
    tokens = np.random.default_rng(0).integers(0, 50, (20, 6))
    for each in (model, stock):  # the last batch has fewer rows
        each.fit(tokens[:, :-1], tokens[:, -1], batch_size=8, shuffle=False, verbose=0)
        each.train_on_batch(tokens[:8, :-1].astype("int32"), tokens[:8, -1].astype("int32"))
    assert len(planned) == 1
    assert max(differences(model, stock)) <= 1e-6


class OwnStep(keras.Model):
    """Reads its batch as it comes."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def test_only_what_keras_reads_alike_stands_for_each_other() -> None:
    functional, outputs = dense(), [layers.Dense(1)]
    own = OwnStep(functional.inputs, functional.outputs)
    own.compile("sgd", "mse")
    wide = dense(loss=keras.losses.MeanSquaredError(dtype="float64"))

    class Net(keras.Model):
        def call(self, x: Any) -> Any:
            return outputs[0](x)

    subclassed, half = Net(), Net(dtype="mixed_float16")
    for model in (subclassed, half):
        model.compile("sgd", "mse")

    def matches(model: keras.Model, given: tuple[str, str], wanted: tuple[str, str]) -> bool:
        specs = [BatchSpec((tf.TensorSpec((8, 6), x), tf.TensorSpec((8, 1), y))) for x, y in (given, wanted)]
        converted = convert_dtypes(model, *specs)
        assert converted is None or converted.key == specs[1].key
        return converted is not None

    single, double = ("float32", "float32"), ("float64", "float64")
    assert matches(functional, double, single)
    assert matches(functional, ("uint8", "int64"), single)
    assert matches(functional, single, double)
    assert not matches(functional, single, ("int64", "float32"))  # would lose what is behind the point
    assert not matches(own, double, single)
    assert matches(own, ("int32", "int64"), ("int64", "int32"))
    assert not matches(wide, double, single)
    assert matches(subclassed, double, single)
    assert not matches(subclassed, ("int64", "float32"), single)  # its call sees integers
    assert matches(half, ("float16", "float32"), single)
    assert not matches(half, double, single)  # 64 bits are rounded to 16 at once
    assert convert_dtypes(functional, BatchSpec((tf.TensorSpec((8, 6)),)), BatchSpec((tf.TensorSpec((8,)),))) is None


def test_wider_batches_than_a_plan_has_memory_for_are_planned(planned: list[Any]) -> None:
    """Eight rows of 6 floats: one batch that comes alone is within what is counted, six of 64 bits are not."""
    model = dense()
    checkmate_tf.rematerialize(
        model,
        data=rows(),
        **(QUICK | {"budget": "100%", "options": checkmate_tf.Options(solver="retain_all", costs="flops")}),
    )
    model.train_on_batch(*rows("float64"))
    assert len(planned) == 1
    with pytest.warns(
        RuntimeWarning, match=r"have float64\[8, 6\] instead of float32\[8, 6\], .*: their step is planned"
    ):
        model.fit(tf.data.Dataset.from_tensor_slices(rows("float64")).batch(8, drop_remainder=True), verbose=0)
    assert len(planned) == 2


def test_another_shape_is_planned_with_its_reason_once(planned: list[Any]) -> None:
    model = dense()
    checkmate_tf.rematerialize(model, data=rows(), **QUICK)
    installed = find_installed_step(model)
    batches = installed.batches
    batches.is_known_to_fit, batches.expect_stock = lambda spec: False, lambda step: 1 << 60
    with pytest.warns(
        RuntimeWarning, match=r"have float32\[5, 6\] instead of float32\[8, 6\], float32\[5, 1\] instead"
    ):
        model.train_on_batch(*rows(number=5))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.train_on_batch(*rows(number=5))
    x, y = rows()
    with pytest.warns(RuntimeWarning, match=r"have float32\[8, 6\], float32\[8, 1\], float32\[8\] instead of float32"):
        model.fit(x, y, batch_size=8, sample_weight=np.ones(8), verbose=0)
    assert len(planned) == 3


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_model_compiled_again_alike_goes_on_with_its_plan(planned: list[Any], jit_compile: bool) -> None:
    model, stock = (dense(keras.optimizers.SGD(0.01, momentum=0.9), jit_compile=jit_compile) for _ in range(2))
    checkmate_tf.rematerialize(model, batch_size=8, **QUICK)
    (first,) = find_installed_step(model).batches.entries.values()
    for rate in (0.01, 0.02):
        for each in (model, stock):
            each.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse", jit_compile=jit_compile)
            each.fit(*rows(), batch_size=8, epochs=2, verbose=0)
        entry = find_installed_step(model).last_entry
        function = entry.functions[0]
        assert entry.planned is first.planned
        assert function is not first.functions[0]
        assert function.num_copied_ops == sum(function.copied_ops_per_node.values()) > 0
    assert len(planned) == 1
    assert max(differences(model, stock)) <= 1e-5


def test_another_optimizer_is_planned_with_its_reason(planned: list[Any]) -> None:
    model = dense()
    checkmate_tf.rematerialize(model, batch_size=8, **QUICK)
    model.compile("sgd", "mse")
    with pytest.warns(
        RuntimeWarning, match="the optimizer and the loss of model .* changed: its step is planned again"
    ):
        model.fit(*rows(), batch_size=8, verbose=0)
    assert len(planned) == 2


class ReadsTable(layers.Layer):
    """Computes the same from a table of 1 MiB for every batch, and adds its mean to each row."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(256, activation="tanh") for _ in range(32)]

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(1024, 256), trainable=False)
        for layer in self.hidden:
            layer.build((1024, 256))

    def call(self, x: Any) -> Any:
        rows = self.table
        for layer in self.hidden:
            rows = layer(rows)
        return x + tf.reduce_mean(rows, axis=0)


class AllPeaks(keras.callbacks.Callback):
    """The allocator's peak from the begin of each step to its end, whatever resets it between."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.base_bytes, self.highest_bytes, self.bytes = self.read("current"), 0, []
        self.reset = tf.config.experimental.reset_memory_stats
        monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", self.note)

    def read(self, kind: str) -> int:
        return tf.config.experimental.get_memory_info("CPU:0")[kind]

    def note(self, device: str) -> None:
        self.highest_bytes = max(self.highest_bytes, self.read("peak"))
        self.reset(device)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.reset("CPU:0")
        self.highest_bytes = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.bytes.append(max(self.highest_bytes, self.read("peak")) - self.base_bytes)


@pytest.mark.measures_memory
def test_planning_in_training_keeps_to_the_budget(planned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stock step of the last, smaller batch would not, as most of it does not shrink with the batch: 1.38 times.

    The step has many tensors of 1 MiB and none that is larger. The allocator serves a tensor from a chunk of up to
    twice its size, so that the peak varies by a tensor or two from step to step.
    """
    ran: list[bool] = []
    measure = GraphStep.measure

    def note(step: GraphStep, function: Any, *args: Any) -> Any:
        ran.append(function is step.stock)
        return measure(step, function, *args)

    peaks = AllPeaks(monkeypatch)
    monkeypatch.setattr(GraphStep, "measure", note)
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(256, activation="tanh") for _ in range(4)]
    model = keras.Sequential([keras.Input((256,)), ReadsTable(), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    x, y = np.ones((2 * 512 + 256, 256), "float32"), np.ones((2 * 512 + 256, 1), "float32")
    options = {"options": checkmate_tf.Options(costs="flops"), "time_limit_s": 10, "progress": False}
    plan = checkmate_tf.rematerialize(model, data=(x, y), batch_size=512, budget="70%", **options)
    assert any(ran)
    ran.clear()
    with pytest.warns(RuntimeWarning, match="their step is planned now"):
        model.fit(x, y, batch_size=512, epochs=2, verbose=0, callbacks=[peaks])
    assert len(planned) == 2
    assert ran
    assert not any(ran)
    assert len(peaks.bytes) == 6
    assert max(peaks.bytes) <= 1.1 * plan.budget_bytes, [each / plan.budget_bytes for each in peaks.bytes]


class OtherForFewRows(layers.Layer):
    """Has operations more in batches of few rows."""

    def call(self, x: Any) -> Any:
        return tf.tanh(x) if (x.shape[0] or 100) < 100 else x


def test_a_stock_step_that_xla_compiles_is_a_whole_one(planned: list[Any]) -> None:
    """Also of another graph than what was compiled: only the part with the gradients is traced."""
    keras.utils.set_random_seed(1)
    hidden = [layers.Dense(64, activation="tanh") for _ in range(8)]
    model = keras.Sequential([keras.Input((64,)), OtherForFewRows(), *hidden, layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    options = {"options": checkmate_tf.Options(costs="flops"), "measure": False, "progress": False}
    assert checkmate_tf.rematerialize(model, batch_size=512, budget="85%", **options).recomputed
    before = [np.array(weight) for weight in model.get_weights()]
    logs = model.train_on_batch(np.ones((64, 64), "float32"), np.ones((64, 1), "float32"), return_dict=True)
    assert list(logs) == ["loss"]
    assert find_installed_step(model).last_entry.planned is None
    assert len(planned) == 1
    assert all(np.any(old != new) for old, new in zip(before, model.get_weights(), strict=True))
