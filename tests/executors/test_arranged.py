"""A plan lists what its step computes again: a schedule is arranged for its executor before anything is said of it."""

from collections import Counter
from functools import partial

import keras
import pytest

from checkmate_tf.executors.graph.step import GraphStep
from checkmate_tf.executors.step import ResidentBytes, Step
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.solvers import solve
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import BatchSpec, guess_spec
from checkmate_tf.training.model_variables import build_for
from checkmate_tf.training.step_part import StepPart, choose_part, complete_step
from tests.training_steps import stateful_net

layers = keras.layers


def recurrent() -> keras.Model:
    inputs = keras.Input((6, 4))
    hidden = layers.LSTM(8, return_sequences=True)(layers.Dense(8, "tanh")(inputs))
    return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(hidden)))


def attention() -> keras.Model:
    inputs = outputs = keras.Input((16, 32))
    outputs = layers.Add()([outputs, layers.MultiHeadAttention(2, 16, dropout=0.1)(outputs, outputs)])
    outputs = layers.Dense(32, "gelu")(layers.LayerNormalization()(outputs))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling1D()(outputs)))


MODELS = {build.__name__: build for build in (stateful_net, recurrent, attention)}


def trace(name: str, executor: str) -> tuple[keras.Model, Step]:
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    model.compile(keras.optimizers.Adam(), "mse", jit_compile=executor == "xla")
    spec: BatchSpec = guess_spec(model, 8)
    build_for(model, spec)
    part: StepPart = choose_part(model)
    function = part.trace(spec)
    if executor == "graph":
        return model, GraphStep.of(function, name=name, resident=ResidentBytes(), arguments=None)
    whole = partial(complete_step, part, spec)
    return model, XlaStep.of(extract(function), whole, spec.flat, resident=ResidentBytes())


def find_node(step: Step, node: int) -> int:
    """The node of the traced step that a node of the step's graph stands for."""
    return step.xla_graph.nodes[node] if isinstance(step, XlaStep) else node


def recompute_much(graph: Graph) -> Schedule:
    """Computes each third node twice in a row, and all forward nodes again before the backward pass."""
    order: list[int] = []
    is_begun = False
    for number, node in enumerate(graph.nodes):
        if node.is_backward and not is_begun:
            is_begun = True
            order += [one for one in range(number) if graph.nodes[one].recomputable]
        order += [number, number] if number % 3 == 0 and node.recomputable else [number]
    return Schedule(tuple(order))


@pytest.mark.parametrize("executor", ["graph", "xla"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_computes_again_what_its_arranged_schedule_says(name: str, executor: str) -> None:
    model, step = trace(name, executor)  # The step reads the model's variables, and dies with it.
    solved = solve(step.graph, "70%", solver="chen_greedy", time_limit_s=5).schedule
    for schedule in (recompute_much(step.graph), solved or make_retain_all_schedule(step.graph)):
        arranged = step.arrange(schedule)
        check_schedule(step.graph, arranged)
        assert step.arrange(arranged) == arranged
        emitted = step.emit(arranged, step.orderings[-1])
        counts = Counter(arranged.order)
        repeated = {find_node(step, node) for node, count in counts.items() if count > 1}
        assert set(emitted.copied_ops_per_node) == repeated
    del model


def test_a_schedule_without_recomputation_stays_as_it_is() -> None:
    model, step = trace("recurrent", "xla")  # The step reads the model's variables, and dies with it.
    schedule = make_retain_all_schedule(step.graph)
    assert step.arrange(schedule) == schedule
    del model
