"""All that plans, estimates or profiles a model sees the same step."""

import gc
import weakref
from dataclasses import replace
from hashlib import sha256
from typing import Any

import keras
import pytest

import checkmate_tf
from checkmate_tf import cli
from checkmate_tf.commands import profile
from checkmate_tf.graph import Graph
from checkmate_tf.max_batch.sized_step import SizedStep
from checkmate_tf.profiling import profiler
from checkmate_tf.training.batches import BatchSpec
from checkmate_tf.training.rematerialize import find_installed_step
from checkmate_tf.training.traced_model import TracedModel, trace_model

BATCH_SIZE = 256


class Profiled(Exception):
    """Ends `checkmate-tf profile` where it would measure nodes."""


def net(*, jit_compile: bool) -> keras.Model:
    inputs = keras.Input((32,))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization()(hidden))
    model = keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=jit_compile)
    return model


def digest(graph: Graph) -> str:
    """Of all that the step decides: costs and workspace come from elsewhere."""
    nodes = [replace(node, cost=0, workspace_bytes=0) for node in graph.nodes]
    return sha256(repr((nodes, graph.values, graph.outputs, graph.resident_bytes)).encode()).hexdigest()


@pytest.mark.parametrize("jit_compile", [False, True])
def test_all_ways_in_see_the_same_step(jit_compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = net(jit_compile=jit_compile)
    found: dict[str, Graph] = {}

    def take(training_graph, **_):
        found["profile"] = training_graph.graph
        raise Profiled

    monkeypatch.setattr(profile, "load_model", lambda _: model)
    monkeypatch.setattr(profiler, "profile_graph", take)
    with pytest.raises(Profiled):
        cli.main(["profile", "net", "--batch-size", str(BATCH_SIZE)])
    found["max_batch_size"] = SizedStep.of(model, "batch").trace(BATCH_SIZE).graph
    found["trace_model"] = trace_model(model, batch_size=BATCH_SIZE).extract().graph
    traced: list[TracedModel] = []
    trace = TracedModel.of

    def note(*arguments, **named):
        traced.append(trace(*arguments, **named))
        return traced[-1]

    monkeypatch.setattr(TracedModel, "of", note)
    quick = {"options": checkmate_tf.Options(costs="flops"), "measure": False, "progress": False}
    checkmate_tf.estimate(model, batch_size=BATCH_SIZE, progress=False)
    checkmate_tf.pareto(model, batch_size=BATCH_SIZE, budgets=["100%"], **quick)
    checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="100%", **quick)
    found |= dict(zip(("estimate", "pareto", "rematerialize"), (one.extract().graph for one in traced), strict=True))
    (entry,) = find_installed_step(model).batches.entries.values()
    found["installed"] = entry.training_graph.graph
    digests = {name: digest(graph) for name, graph in found.items()}
    assert len(set(digests.values())) == 1, digests


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_plan_keeps_no_batch_in_memory(jit_compile: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that a step was measured on would take memory beside those that the model trains on."""
    tensors: list[Any] = []
    make_zeros = BatchSpec.make_zeros

    def note(spec):
        batch = make_zeros(spec)
        tensors.extend(map(weakref.ref, batch.tensors))
        return batch

    monkeypatch.setattr(BatchSpec, "make_zeros", note)
    model = net(jit_compile=jit_compile)
    plan = checkmate_tf.rematerialize(model, batch_size=BATCH_SIZE, budget="95%", progress=False)
    assert plan.measured_peak_bytes is not None
    gc.collect()
    assert tensors
    assert not [tensor for tensor in tensors if tensor() is not None]
