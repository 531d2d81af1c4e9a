"""Costs of what XLA runs: each node of an XLA graph is timed as a module of its own."""

from dataclasses import replace
from functools import partial

import keras
import pytest

from checkmate_tf.errors import ProfileError
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.executors.xla.step import XlaStep
from checkmate_tf.planning.options import Options
from checkmate_tf.profiling import profiler
from checkmate_tf.profiling.cache import ProfileCache
from checkmate_tf.profiling.costs import FlopsCosts, MeasuredCosts, RooflineCosts, cost_training_graph
from checkmate_tf.profiling.device import find_default_device, make_device_key
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.model_variables import build_for
from checkmate_tf.training.step_part import complete_step, make_gradient_part


@pytest.fixture(scope="module")
def step():
    """BatchNorm and ReLU, which XLA computes within the products that read them."""
    keras.utils.set_random_seed(0)
    inputs = x = keras.Input((64,))
    for _ in range(3):
        x = keras.layers.Dense(256, use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    model = keras.Model(inputs, keras.layers.Dense(4)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    spec = guess_spec(model, 512)
    build_for(model, spec)
    part = make_gradient_part(model)
    graph = extract(part.trace(spec))
    yield XlaStep.of(graph, partial(complete_step, part, spec), spec.flat, resident=ResidentBytes())
    del model  # a traced function does not keep its variables


def add_costs(step, cache):
    return step.add_costs(MeasuredCosts(cache))


def test_each_distinct_node_is_compiled_once_with_what_is_computed_within_it(step, tmp_path, monkeypatch):
    timed = []

    def measure(fragment, device, **options):
        assert options["compiled"]
        timed.append(fragment)
        return measure_fragment(fragment, device, **options)

    measure_fragment = profiler.measure_fragment
    monkeypatch.setattr(profiler, "measure_fragment", measure)
    costed = add_costs(step, tmp_path / "c")
    signatures = [fragment.signature for fragment in timed]
    assert len(signatures) == len(set(signatures)) > 0
    graph = costed.graph
    assert graph.cost_unit == "ns"
    assert sum(node.cost > 0 for node in graph.nodes) > len(graph.nodes) / 2
    alone = {cut.signature for cut in profiler.cut_node_fragments(step.training_graph)}
    fuses = [node for node in step.xla_graph.nodes if step.xla_graph.fused[node]]
    units = [frozenset((node,)) | step.xla_graph.fused[node] for node in fuses]
    together = {cut.signature for cut in profiler.cut_node_fragments(step.training_graph, units)}
    assert together
    assert together <= set(signatures) - alone
    assert [node.cost for node in add_costs(step, tmp_path / "c").graph.nodes] == [node.cost for node in graph.nodes]
    assert len(timed) == len(signatures)
    device = make_device_key(find_default_device())
    with ProfileCache(tmp_path / "c") as cache:  # apart from what TensorFlow's own kernels take
        assert set(signatures) == set(cache.load(replace(device, driver=f"{device.driver}, XLA")))
        assert set(signatures).isdisjoint(cache.load(device))


def test_other_costs_are_as_they_are_without_xla(step):
    costed = step.add_costs(FlopsCosts())
    flops = cost_training_graph(step.training_graph, "flops").graph
    late = [number for number in range(len(costed.graph.nodes)) if number not in costed.xla_graph.early]
    assert [costed.graph.nodes[n].cost for n in late] == [flops.nodes[costed.xla_graph.nodes[n]].cost for n in late]


def test_costs_are_a_rooflines_under_xla_unless_others_are_asked_for():
    assert Options().choose_costs(compiled=True) == RooflineCosts(compiled=True)
    assert isinstance(Options().choose_costs(compiled=False), MeasuredCosts)
    assert isinstance(Options(costs="measured").choose_costs(compiled=True), MeasuredCosts)
    with pytest.raises(ProfileError, match="costs 'fast' are unknown; use one of auto, measured"):
        Options(costs="fast")


def test_nothing_is_compiled_for_a_rooflines_costs(step, monkeypatch):
    monkeypatch.setattr("checkmate_tf.executors.xla.step.time_nodes", pytest.fail)
    costed = step.add_costs(RooflineCosts(compiled=True))
    assert costed.graph.cost_unit == "ns"
    assert sum(node.cost > 0 for node in costed.graph.nodes) > len(costed.graph.nodes) / 2
