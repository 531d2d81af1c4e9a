"""Loops that read variables, computed again near and after what changes these variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import checkmate_tf
from checkmate_tf.errors import EmissionError
from checkmate_tf.executors.emission.awaited_calls import delay_changes
from checkmate_tf.executors.emission.writer import check_emitted
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.search import Search
from tests.graphs import graph_of


class RecomputeForEachReader(Solver):
    """Computes all that a node reads, directly or not, again before each node after the first update."""

    def search(self, search: Search) -> Result:
        graph = search.problem.graph
        order: list[int] = []
        is_update = [not one.outputs or "Assign" in one.op_type or one.op_type == "If" for one in graph.nodes]
        for index in range(len(graph.nodes)):
            if any(is_update[: index + 1]):
                again: list[int] = []
                for before in graph.predecessors[index]:
                    self._add(graph, before, again)
                order += again
            order.append(index)
        return Result(Schedule.of(order))

    def _add(self, graph: Graph, index: int, again: list[int]) -> None:
        if index in again or not graph.nodes[index].recomputable:
            return
        for before in graph.predecessors[index]:
            self._add(graph, before, again)
        again.append(index)


@pytest.mark.parametrize("accumulation_steps", [None, 2], ids=["updates", "one update in a branch"])
def test_a_loop_computed_again_reads_the_values_of_before(accumulation_steps: int | None) -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(4, 6, 4)).astype("float32"), random.normal(size=(4, 3)).astype("float32")

    def build() -> keras.Model:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6, 4))
        hidden = layers.Dense(8, "tanh")(layers.GRU(8, return_sequences=True)(inputs))
        model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(hidden)))
        optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=accumulation_steps)
        model.compile(optimizer, "mse", jit_compile=False)
        return model

    def train(model: keras.Model) -> list[float]:
        return [float(model.train_on_batch(x, y)) for _ in range(3)]

    stock, mine = build(), build()
    plan = checkmate_tf.rematerialize(
        mine,
        budget="1000%",
        data=(x, y),
        batch_size=4,
        options=checkmate_tf.Options(solver=RecomputeForEachReader(), costs="flops"),
        measure=False,
    )
    loops = [index for index, node in enumerate(plan.graph.nodes) if node.op_type == "While"]
    assert all(plan.schedule.order.count(loop) > 1 for loop in loops)
    assert loops
    np.testing.assert_allclose(train(mine), train(stock), rtol=1e-5)
    for one, other in zip(mine.variables, stock.variables, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-6)


def test_under_xla_what_changes_a_loops_variables_waits_for_all_its_copies() -> None:
    """XLA takes what is not told to wait in any order, so that numbers alone would not tell."""
    inputs = keras.Input((3, 2))
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.GRU(2, return_sequences=True)(inputs))))

    @tf.function(jit_compile=True)
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True)))
        for variable, gradient in zip(
            model.trainable_variables, tape.gradient(loss, model.trainable_variables), strict=True
        ):
            variable.value.assign_sub(0.5 * gradient)
        return loss

    rewritten = checkmate_tf.rewrite_function(
        step.get_concrete_function(tf.TensorSpec((4, 3, 2))),
        budget="1000%",
        options=checkmate_tf.Options(solver=RecomputeForEachReader(), costs="flops"),
        measure=False,
    )
    definition = rewritten.function.function.graph.as_graph_def()
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    (body,) = (nodes for nodes in bodies if any(node.op == "AssignSubVariableOp" for node in nodes))
    loops = {f"^{node.name}" for node in body if node.op == "While"}
    waits = [set(node.input) for node in body if node.op == "AssignSubVariableOp" and not loops.isdisjoint(node.input)]
    assert len(loops) > 1
    assert len(waits) == 3  # the two kernels of the GRU, and its bias
    assert all(loops <= inputs for inputs in waits)


def test_a_change_and_what_follows_it_come_behind_the_last_repeat_of_a_call() -> None:
    graph = graph_of({"c": "", "u": "c", "f": "u", "g": "c"})
    call, update, follower, reader = range(4)
    awaited: list[set[int]] = [set(), {call}, set(), set()]
    once = Schedule((call, update, follower, reader))
    assert delay_changes(graph, once, awaited) is once
    early = Schedule((call, update, follower, call, reader))
    assert delay_changes(graph, early, awaited).order == (call, call, update, follower, reader)
    with pytest.raises(EmissionError, match="arrange it for its executor first"):
        check_emitted(graph, early, awaited)
