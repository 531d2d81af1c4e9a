"""Random Keras models, trained for a few steps: the rematerialized step has to do what the stock one does."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.serialization import graph_to_json
from tests.fuzz.reference import simulate

layers = keras.layers

_STEPS = 3
_LOWEST_SHARE = 0.4  # of the stock peak, as a budget
_SOLVERS = ("auto", "block_relaxation", "stage_annealing", "checkmate_lp", "twremat", "ap_sqrt", "xla_greedy", "fastsa")


class _Rounding(NamedTuple):
    """By how much two steps may differ: a share of a variable's own change, and of the greatest change of any."""

    own: float
    any: float


_ROUNDING: Mapping[str, _Rounding] = {
    "float64": _Rounding(1e-5, 1e-7),  # the last layers are of 32 bits
    "float32": _Rounding(2e-3, 1e-5),
    "mixed_bfloat16": _Rounding(0.1, 0.1),
    "mixed_float16": _Rounding(0.05, 0.05),
}


@dataclass(frozen=True)
class _Case:
    """A compiled model and the batches that it is trained on, (x, y, sample weights or None)."""

    model: keras.Model
    batches: list[tuple[Any, Any, np.ndarray | None]]
    dtype: str


class _Trained(NamedTuple):
    """All variables by path, and what each step reported."""

    variables: dict[str, np.ndarray]
    logs: list[dict[str, float]]


class _Counting(layers.Layer):
    """Scales by a state that each training step changes."""

    def build(self, input_shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="ones", trainable=False, name="steps")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(keras.ops.cast(0.125, self.steps.dtype))
        return inputs * keras.ops.cast(self.steps, inputs.dtype)


def check_model(seed: int) -> str:
    """Raises AssertionError where the rematerialized model's losses, weights or peak are not what they should be."""
    lot = random.Random(seed)
    dtype = lot.choice(("float32", "float32", "float32", "float64", "mixed_bfloat16", "mixed_float16"))
    with _policy(dtype):
        stock = _make(seed, dtype)
        if not stock.model.trainable_variables:
            return "nothing to train"
        started = _variables(stock.model)
        try:
            expected = _train(stock)
        except TypeError:  # such as losses in 16 bits beside others
            return "not trained by Keras"
        mine = _make(seed, dtype)
        outcome, what = _rematerialize(mine, lot, seed)
        found = _train(mine)
    _compare(started, expected, found, _ROUNDING[dtype], f"{what}, {dtype}")
    return outcome


def _rematerialize(case: _Case, lot: random.Random, seed: int) -> tuple[str, str]:
    """Rematerializes within a budget, or within the one that the refusal names; what came of it, and of what."""
    budget = f"{100 * lot.uniform(_LOWEST_SHARE, 1.0):.0f}%"
    solver, order = lot.choice(_SOLVERS), lot.choice(("fixed", "fixed", "free"))
    options = checkmate_tf.Options(solver, order, costs="flops", seed=seed)
    measure = lot.random() < 0.3
    what = f"budget {budget}, measure {measure}, {options}"
    rows = len(case.batches[0][2]) if case.batches[0][2] is not None else None
    arguments = {
        "data": case.batches[0],
        "batch_size": rows,
        "time_limit_s": 0.5,
        "options": options,
        "measure": measure,
        "progress": False,
    }
    outcome = "rematerialized"
    try:
        plan = checkmate_tf.rematerialize(case.model, budget=budget, **arguments)
    except InfeasibleBudgetError as error:
        if error.least_budget_bytes is None:
            raise AssertionError(f"{what}: the refusal names no budget") from error
        outcome = "rematerialized at the least budget"
        try:
            plan = checkmate_tf.rematerialize(case.model, budget=error.least_budget_bytes, **arguments)
        except InfeasibleBudgetError:  # by a solver that time cut short; the model then trains as stock
            return "refused at the least budget named", what
    assert plan.peak_bytes <= plan.budget_bytes, f"{what}: peak {plan.peak_bytes}, budget {plan.budget_bytes}"
    figures, simulation = simulate(graph_to_json(plan.graph), list(plan.schedule.order)), plan.solution.simulation
    assert simulation is not None
    assert figures == (simulation.peak_bytes, simulation.cost), f"{what}: {figures} by the reference"
    return outcome if plan.recomputed else "nothing recomputed", what


def _compare(
    started: dict[str, np.ndarray], expected: _Trained, found: _Trained, rounding: _Rounding, what: str
) -> None:
    changes = {name: np.abs(after - started.get(name, 0.0)).max() for name, after in expected.variables.items()}
    most = max(changes.values())
    for name, after in expected.variables.items():
        difference = np.abs(found.variables[name] - after).max()
        allowed = rounding.own * changes[name] + rounding.any * most
        assert difference <= allowed, f"{what}: {name} changed by {changes[name]:g}, and differs by {difference:g}"
    for step, (logs, mine) in enumerate(zip(expected.logs, found.logs, strict=True)):
        for name, value in logs.items():
            allowed = 3 * rounding.own * (abs(value) + abs(expected.logs[0]["loss"]))
            assert abs(mine[name] - value) <= allowed, f"{what}: {name} of step {step} is {mine[name]}, not {value}"


def _train(case: _Case) -> _Trained:
    keras.utils.set_random_seed(1)
    logs = []
    for x, y, weights in case.batches:
        case.model.reset_metrics()
        logs.append(case.model.train_on_batch(x, y, sample_weight=weights, return_dict=True))
    return _Trained(_variables(case.model), [{name: float(value) for name, value in each.items()} for each in logs])


def _variables(model: keras.Model) -> dict[str, np.ndarray]:
    every = [*model.variables, *model.optimizer.variables]
    return {
        f"{index} {variable.name}": np.asarray(keras.ops.convert_to_numpy(variable), dtype=np.float64)
        for index, variable in enumerate(every)
        if keras.ops.size(variable)
    }


@contextmanager
def _policy(dtype: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
        keras.backend.clear_session()


def _make(seed: int, dtype: str) -> _Case:
    """The same model with the same weights and batches, whenever it is called."""
    keras.backend.clear_session()  # so that names are the same
    keras.utils.set_random_seed(seed)
    lot, numbers = random.Random(f"model {seed}"), np.random.default_rng(seed)
    kind = lot.choice(("images", "images", "sequence", "tokens", "vectors"))
    rows = lot.choice((2, 4, 8, 16, 32))
    if kind == "images":
        size = lot.choice((4, 6, 8, 16, 24))
        inputs = keras.Input((size, size, lot.choice((1, 3, 8))))
    elif kind == "sequence":
        inputs = keras.Input((lot.randint(3, 16), lot.choice((4, 8, 16))))
    elif kind == "tokens":
        inputs = keras.Input((lot.randint(3, 16),), dtype="int32")
    else:
        inputs = keras.Input((lot.choice((3, 16, 64)),))
    model = keras.Model(inputs, _draw_outputs(inputs, lot))
    for layer in model.layers:
        layer.trainable = layer.trainable and lot.random() < 0.95
    _compile(model, lot)
    shape = (rows, *inputs.shape[1:])
    is_weighted = lot.random() < 0.2 and len(model.outputs) == 1
    batches = []
    for _ in range(_STEPS):
        x = numbers.integers(0, 20, shape) if kind == "tokens" else numbers.normal(size=shape).astype(np.float32)
        y = [numbers.normal(size=(rows, output.shape[-1])).astype(np.float32) for output in model.outputs]
        weights = numbers.uniform(0.5, 1.5, rows).astype(np.float32) if is_weighted else None
        batches.append((x, y if len(y) > 1 else y[0], weights))
    return _Case(model, batches, dtype)


def _compile(model: keras.Model, lot: random.Random) -> None:
    # A large epsilon, as else Adam makes a whole step of a gradient that is zero but for rounding.
    optimizer = lot.choice(
        (
            lambda: keras.optimizers.SGD(0.05),
            lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=lot.random() < 0.5),
            lambda: keras.optimizers.Adam(0.01, epsilon=0.1, amsgrad=lot.random() < 0.3),
            lambda: keras.optimizers.AdamW(0.01, epsilon=0.1, weight_decay=0.01),
            lambda: keras.optimizers.SGD(0.05, clipnorm=1.0),
            lambda: keras.optimizers.SGD(0.05, global_clipnorm=0.5),
            lambda: keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=2),
            lambda: keras.optimizers.RMSprop(0.01, epsilon=0.1, centered=lot.random() < 0.3),
            lambda: keras.optimizers.SGD(0.05, gradient_accumulation_steps=2),
        )
    )()
    loss = lot.choice(("mse", "mae", "huber", "log_cosh"))
    several = len(model.outputs) > 1
    weights = [lot.choice((0.5, 1.0)) for _ in model.outputs] if several and lot.random() < 0.5 else None
    model.compile(
        optimizer,
        [loss] * len(model.outputs) if several else loss,
        loss_weights=weights,
        metrics=[["mae"]] * len(model.outputs) if several and lot.random() < 0.5 else None,
        jit_compile=False,
    )


def _draw_outputs(inputs: Any, lot: random.Random) -> list[Any] | Any:
    """Draws layers that each read one or two of the tensors so far, mostly the latest."""
    made: list[layers.Layer] = []
    tensors = [inputs]
    if inputs.dtype == "int32":
        tensors = [layers.Embedding(20, lot.choice((4, 8, 16)))(inputs)]
    for _ in range(lot.randint(2, 9)):
        source = tensors[-1] if lot.random() < 0.75 else lot.choice(tensors)
        tensors.append(_draw_layer(source, tensors, made, lot))
    heads = [tensors[-1], *(lot.choice(tensors) for _ in range(lot.choice((0, 0, 0, 1, 2))))]
    outputs = []
    for head in heads:
        if len(head.shape) == 4:
            head = lot.choice((layers.GlobalAveragePooling2D, layers.GlobalMaxPooling2D, layers.Flatten))()(head)
        elif len(head.shape) == 3:
            head = lot.choice((layers.GlobalAveragePooling1D, layers.Flatten))()(head)
        outputs.append(layers.Dense(lot.randint(1, 4), dtype="float32")(head))
    return outputs if len(outputs) > 1 else outputs[0]


def _draw_layer(source: Any, tensors: list[Any], made: list[layers.Layer], lot: random.Random) -> Any:
    alike = [other for other in tensors if other.shape == source.shape and other is not source]
    if alike and lot.random() < 0.3:
        join = lot.choice((layers.Add, layers.Multiply, layers.Maximum, layers.Average, layers.Concatenate))
        return join()([source, lot.choice(alike)])
    fitting = [layer for layer in made if layer.input.shape == source.shape]
    if fitting and lot.random() < 0.2:
        return lot.choice(fitting)(source)
    layer = _new_layer(source, lot)
    if isinstance(layer, layers.MultiHeadAttention):
        return layer(source, source, use_causal_mask=lot.random() < 0.5)
    output = layer(source)
    made.append(layer)
    return output


def _new_layer(source: Any, lot: random.Random) -> Any:
    width = lot.choice((4, 8, 16, 32))
    activation = lot.choice((None, "relu", "gelu", "tanh", "sigmoid", "softplus", "swish", "elu"))
    regularizer = lot.choice((None, None, None, keras.regularizers.L2(1e-3), keras.regularizers.L1(1e-3)))
    anywhere = (
        lambda: layers.Activation(activation or "softmax"),
        lambda: layers.BatchNormalization(momentum=0.9),
        lambda: layers.LayerNormalization(),
        lambda: layers.Dropout(lot.choice((0.1, 0.5))),
        lambda: layers.ActivityRegularization(l2=1e-3),
        lambda: layers.LeakyReLU(),
        lambda: layers.Rescaling(0.5, 0.1),
        lambda: _Counting(),
    )
    common = {"activation": activation, "use_bias": lot.random() < 0.8, "kernel_regularizer": regularizer}
    if len(source.shape) == 4:
        small = source.shape[1] < 4
        return lot.choice(
            (
                *anywhere,
                *[lambda: layers.Conv2D(width, lot.choice((1, 3)), padding="same", **common)] * 5,
                lambda: layers.Conv2D(width, 3, padding="same", strides=1 if small else 2),
                lambda: layers.Conv2D(width, 3, padding="same", dilation_rate=2),
                lambda: layers.DepthwiseConv2D(3, padding="same", activation=activation),
                lambda: layers.SeparableConv2D(width, 3, padding="same"),
                lambda: layers.Conv2DTranspose(8, 3, padding="same"),
                lambda: layers.MaxPooling2D(1 if small else 2),
                lambda: layers.AveragePooling2D(1 if small else 2),
                lambda: layers.UpSampling2D(2 if source.shape[1] <= 12 else 1, interpolation="bilinear"),
                lambda: layers.SpatialDropout2D(0.2),
                lambda: layers.PReLU(shared_axes=[1, 2]),
                lambda: layers.GroupNormalization(1),
            )
        )()
    if len(source.shape) == 3:
        heads = lot.choice((1, 2))
        return lot.choice(
            (
                *anywhere,
                *[lambda: layers.Dense(width, **common)] * 3,
                lambda: layers.Conv1D(width, 3, padding="causal", **common),
                lambda: layers.LSTM(8, return_sequences=True),
                lambda: layers.GRU(8, return_sequences=True),
                lambda: layers.SimpleRNN(8, return_sequences=True),
                lambda: layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
                *[lambda: layers.MultiHeadAttention(heads, 4, dropout=lot.choice((0.0, 0.1)))] * 2,
                lambda: layers.TimeDistributed(layers.Dense(width)),
                lambda: layers.Permute((2, 1)),
            )
        )()
    return lot.choice(
        (
            *anywhere,
            *[lambda: layers.Dense(width * lot.choice((1, 4)), **common)] * 5,
            lambda: layers.GaussianNoise(0.1),
            lambda: layers.UnitNormalization(),
            lambda: keras.Sequential([layers.Dense(width, activation="relu"), layers.BatchNormalization()]),
        )
    )()
