"""Models that train with what their user keeps and recomputes, in both executors; and those built in a RematScope."""

from contextlib import nullcontext
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import checkmate_tf
from checkmate_tf.constraints import list_broken
from checkmate_tf.errors import PatternError
from checkmate_tf.patterns import combine
from tests.graphs import training_chain

QUICK: dict[str, Any] = {"time_limit_s": 5, "measure": False, "progress": False}


def build(mode: str | None = None, *, jit_compile: bool = False, **settings: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    with nullcontext() if mode is None else keras.RematScope(mode, **settings):
        inputs = hidden = keras.Input((16, 16, 8))
        for number in range(3):
            hidden = layers.Conv2D(8, 3, padding="same", activation="gelu", name=f"conv_{number}")(hidden)
            hidden = layers.BatchNormalization(name=f"norm_{number}")(hidden)
            hidden = layers.Dropout(0.1, seed=number, name=f"drop_{number}")(hidden)
        model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(hidden)))
    model.compile("sgd", "mse", jit_compile=jit_compile)
    return model


def train(model: keras.Model) -> list[float]:
    random = np.random.default_rng(0)
    x, y = random.random((64, 16, 16, 8), dtype="float32"), random.random((64, 3), dtype="float32")
    return model.fit(x, y, batch_size=32, epochs=2, verbose=0, shuffle=False).history["loss"]


@cache
def train_stock(*, jit_compile: bool = False) -> list[float]:
    return train(build(jit_compile=jit_compile))


def find_layers(plan: checkmate_tf.Plan) -> set[str]:
    return {one.layer.split("/")[0] for one in plan.recomputed}


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_steered_model_trains_with_the_numbers_of_the_stock_step(jit_compile: bool) -> None:
    model = build(jit_compile=jit_compile)
    options = checkmate_tf.Options(costs="flops", keep=["conv_0", "norm_0"], recompute=["conv_1"])
    plan = checkmate_tf.rematerialize(model, batch_size=32, budget="90%", options=options, **QUICK)
    steering = options.steer(plan.graph, plan.origins)
    assert list_broken(plan.graph, plan.schedule, combine(steering)) == []
    assert "conv_1" in find_layers(plan)
    assert find_layers(plan).isdisjoint({"conv_0", "norm_0"})
    np.testing.assert_allclose(train(model), train_stock(jit_compile=jit_compile), rtol=1e-4)


@pytest.mark.parametrize(
    ("mode", "settings", "recomputed"),
    [
        ("full", {}, {"conv_0", "conv_1", "conv_2", "norm_0", "norm_1", "norm_2"}),
        ("activations", {}, {"conv_0", "conv_1", "conv_2"}),
        ("larger_than", {"output_size_threshold": 10**9}, set()),
        ("list_of_layers", {"layer_names": ["norm_1", "conv_0"]}, {"norm_1", "conv_0"}),
    ],
)
def test_a_model_of_a_remat_scope_recomputes_what_that_asks_for(mode: str, settings: Any, recomputed: set[str]) -> None:
    model = build(mode, **settings)
    options = checkmate_tf.Options(costs="flops")
    plan = checkmate_tf.rematerialize(model, batch_size=32, budget="100%", options=options, **QUICK)
    found = find_layers(plan)
    assert recomputed <= found
    assert {name for name in found if name.startswith(("conv", "norm"))} == recomputed
    assert [one.pattern for one in plan.patterns] == ([f"RematScope({mode!r})"] if recomputed else [])
    np.testing.assert_allclose(train(model), train_stock(), rtol=1e-5)


def test_what_is_kept_is_not_recomputed_for_a_remat_scope() -> None:
    options = checkmate_tf.Options(costs="flops", keep=["conv_*"])
    plan = checkmate_tf.rematerialize(build("full"), batch_size=32, budget="100%", options=options, **QUICK)
    assert {name for name in find_layers(plan) if name.startswith("conv")} == set()
    assert "norm_1" in find_layers(plan)


def test_the_largest_batch_and_the_curve_of_budgets_are_steered_too() -> None:
    steps = [layers.Dense(64, activation="relu", name=f"dense_{number}") for number in range(6)]
    model = keras.Sequential([keras.Input((64,)), *steps, layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    options = checkmate_tf.Options(costs="flops", recompute=["dense_2"], margin="10%")
    found = checkmate_tf.max_batch_size(model, budget="4MiB", options=options, **QUICK)
    steering = combine(options.steer(found.plan.graph, found.plan.origins))
    assert list_broken(found.plan.graph, found.plan.schedule, steering) == []
    state_bytes = found.plan.resident.state
    assert found.budget_bytes == (4 << 20) - int(0.1 * ((4 << 20) - state_bytes))
    curve = checkmate_tf.pareto(model, batch_size=256, budgets=["100%", "90%"], options=options, **QUICK)
    assert all(point.overhead > 0 for point in curve.points)


def test_a_misspelt_layer_is_named_with_near_ones() -> None:
    options = checkmate_tf.Options(costs="flops", keep=["covn_1"])
    with pytest.raises(PatternError, match="Close to it: conv_1"):
        checkmate_tf.rematerialize(build(), batch_size=32, budget="90%", options=options, **QUICK)


def test_graphs_are_solved_by_patterns_of_names() -> None:
    graph = training_chain(6, size=1000)
    solution = checkmate_tf.solve(graph, "100%", recompute=["f3"], keep=["f1"], time_limit_s=5)
    assert solution.scheduled.schedule.order.count(3) == 2
    assert solution.scheduled.simulation.cost == graph.baseline_cost + 1
    with pytest.raises(PatternError, match="Close to it"):
        checkmate_tf.solve(graph, "100%", keep=["f33"])
