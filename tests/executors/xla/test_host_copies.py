"""Values that a step which XLA compiles for a GPU copies to host memory and back."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

import checkmate_tf
from checkmate_tf.errors import ProfileError
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla.backends import GPU
from checkmate_tf.executors.xla.compilers import choose_compiler, has_jax
from checkmate_tf.executors.xla.hlo.memory import read_xla_memory
from checkmate_tf.executors.xla.host_copies import add_transfer_costs
from checkmate_tf.executors.xla.model.graph import XlaGraph
from checkmate_tf.executors.xla.writer import arrange_for_xla, emit_for_xla
from checkmate_tf.planning.options import Options
from checkmate_tf.profiling.devices import DEVICES
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule, simulate
from checkmate_tf.tf_private import XLA_BARRIER_TYPE, HloProto, call_flat
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.step_part import complete_step, make_gradient_part
from tests.executors.xla.rules.steps import BATCH_SIZE, make_graph, trace
from tests.executors.xla.test_compilers import make_model
from tests.training_steps import conv_chain

needs_jax = pytest.mark.skipif(not has_jax(), reason="JAX and its CUDA plugin are not installed")
ON_HOST = 5  # XLA's number for the memory of the host


def build():
    return conv_chain(num_layers=12, size=64)


def let_offload() -> XlaGraph:
    """Activations of 4 MiB that may be copied out."""
    xla_graph = make_graph(build, GPU)
    xla_graph = replace(xla_graph, graph=replace(xla_graph.graph, cost_unit="ns"))
    return add_transfer_costs(xla_graph, 64e9)


def offload_all(xla_graph: XlaGraph) -> Schedule:
    """Each such value comes back for the first backward node that reads it."""
    graph = xla_graph.graph
    fetches = [
        (min(reader for reader in graph.users[number] if graph.nodes[reader].is_backward), number)
        for number, value in enumerate(graph.values)
        if value.fetch_cost is not None
    ]
    schedule = replace(make_retain_all_schedule(graph), fetches=tuple(sorted(fetches)))
    return arrange_for_xla(xla_graph, schedule)


def list_places(graph_def: GraphDef) -> dict[str, list[str]]:
    """The inputs of what places tensors in memory, by the kind of memory."""
    found: dict[str, list[str]] = {"pinned_host": [], "device": []}
    for node in graph_def.node:
        if node.op == "XlaCustomCallV2":
            assert node.attr["call_target_name"].s == b"annotate_device_placement"
            memory = next(kind for kind in found if kind.encode() in node.attr["_XlaFrontendAttributes"].s)
            found[memory].append(node.input[0])
    return found


def test_only_large_activations_are_offloaded():
    graph = let_offload().graph
    offloaded = [graph.producer[n] for n, value in enumerate(graph.values) if value.offload_cost is not None]
    assert len(offloaded) >= 11
    assert not any(graph.nodes[node].is_backward for node in offloaded)
    value = next(value for value in graph.values if value.offload_cost is not None)
    assert value.offload_cost == value.fetch_cost == 10_000 + round(value.size_bytes / 64)
    unit = make_graph(build, GPU)
    assert unit.graph.cost_unit != "ns"
    with pytest.raises(ProfileError, match="costs must be times"):
        add_transfer_costs(unit, 1.0)


def test_what_is_offloaded_goes_out_and_comes_back_behind_barriers():
    xla_graph = let_offload()
    schedule = offload_all(xla_graph)
    graph_def = emit_for_xla(xla_graph, schedule).graph_def
    places = list_places(graph_def)
    assert len(places["pinned_host"]) == len(places["device"]) == len(schedule.fetches) >= 11
    types = {node.name: node.op for node in graph_def.node}
    inputs = {node.name: list(node.input) for node in graph_def.node}

    def follow(name: str) -> str:
        node = name.partition(":")[0]
        while types[node] in ("EnsureShape", "Identity", "IdentityN"):
            node = inputs[node][0].partition(":")[0]
        return types[node]

    assert all(follow(name) == XLA_BARRIER_TYPE for name in places["device"])
    assert (
        simulate(xla_graph.graph, schedule).peak_bytes
        < simulate(xla_graph.graph, make_retain_all_schedule(xla_graph.graph)).peak_bytes
    )


def test_a_step_that_offloads_yields_the_numbers_of_stock(monkeypatch):
    """XLA:CPU places nothing, so that copies are views here."""
    monkeypatch.setattr("checkmate_tf.executors.xla.host_copies.place_in_memory", lambda tensor, memory: tensor + 0.0)
    xla_graph = let_offload()
    emitted = emit_for_xla(xla_graph, offload_all(xla_graph))
    model = trace(build)[0]
    random = np.random.default_rng(0)
    arguments = [tf.constant(random.random(spec.shape, "float32")) for spec in guess_spec(model, BATCH_SIZE).flat]
    source = xla_graph.training_graph.function
    results = [tf.nest.flatten(call_flat(function, arguments)) for function in (emitted.function, source)]
    for ours, theirs in zip(*results, strict=True):
        if theirs is not None:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def compile_for_h100(emitted: EmittedFunction) -> HloProto:
    model = trace(build)[0]
    spec, part = guess_spec(model, BATCH_SIZE), make_gradient_part(model)
    assert part is not None
    return choose_compiler(DEVICES["h100"]).compile_step(complete_step(part, spec, emitted), spec.flat)


@needs_jax
def test_an_h100s_memory_is_free_while_values_are_in_the_hosts():
    xla_graph = let_offload()
    stays = compile_for_h100(emit_for_xla(xla_graph, make_retain_all_schedule(xla_graph.graph)))
    schedule = offload_all(xla_graph)
    module = compile_for_h100(emit_for_xla(xla_graph, schedule))
    entry = next(c for c in module.hlo_module.computations if c.id == module.hlo_module.entry_computation_id)
    starts = {
        one.id: one.shape.tuple_shapes[0].layout.memory_space == ON_HOST
        for one in entry.instructions
        if one.opcode == "copy-start"
    }
    assert sum(starts.values()) == len(starts) - sum(starts.values()) == len(schedule.fetches)
    order = list(module.hlo_module.schedule.sequences[entry.id].instruction_ids)
    ends = {one.operand_ids[0]: order.index(one.id) for one in entry.instructions if one.opcode == "copy-done"}
    hidden = [ends[start] - order.index(start) > 1 for start in starts]
    assert sum(hidden) > len(hidden) / 2  # Something runs in between.
    assert read_xla_memory(module).temporary_bytes < 0.75 * read_xla_memory(stays).temporary_bytes


@needs_jax
def test_a_plan_for_an_h100_offloads_where_copies_are_cheap():
    options = Options(device="h100", offload="host", bandwidth="4000GB")
    plan = checkmate_tf.rematerialize(make_model(), batch_size=256, budget="45%", options=options, progress=False)
    assert plan.offloaded
    assert plan.peak_bytes <= plan.budget_bytes
    assert "out of memory and back" in str(plan)
