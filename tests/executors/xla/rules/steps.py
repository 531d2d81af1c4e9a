"""Small steps of XLA, with all rules of a backend or without one."""

import re
from collections.abc import Callable
from functools import cache

import keras
import tensorflow as tf

from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla.backend import Backend
from checkmate_tf.executors.xla.hlo.kernels import list_kernels
from checkmate_tf.executors.xla.hlo.memory import compile_step
from checkmate_tf.executors.xla.model.graph import XlaGraph, choose_lowerings, make_xla_graph
from checkmate_tf.executors.xla.writer import emit_for_xla
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import make_retain_all_schedule
from checkmate_tf.tracing.extraction import extract
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.step_part import complete_step, make_gradient_part

BATCH_SIZE = 8
Build = Callable[[], keras.Model]


@cache
def trace(build: Build, loss: str | keras.Loss = "mse"):
    """A model, whose variables live as long as it does, its part of the step that is rewritten, and that as a graph."""
    keras.utils.set_random_seed(0)
    model = build()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, jit_compile=True)
    part = make_gradient_part(model)
    return model, part, extract(part.trace(guess_spec(model, BATCH_SIZE)))


@cache
def compile_kernels(build: Build, loss: str | keras.Loss = "mse"):
    """The kernels of a model's stock step."""
    model, part, training_graph = trace(build, loss)
    spec = guess_spec(model, BATCH_SIZE)
    whole = complete_step(part, spec, EmittedFunction(training_graph.function))
    return list_kernels(compile_step(whole, spec.flat))


def make_graph(build: Build, backend: Backend, loss: str | keras.Loss = "mse") -> XlaGraph:
    training_graph = trace(build, loss)[2]
    return choose_lowerings(make_xla_graph(training_graph, compile_kernels(build, loss), backend))


def list_materialized(build: Build, backend: Backend, pattern: str) -> list[str]:
    """The names of nodes that are written to buffers, of those whose type matches."""
    graph = make_graph(build, backend)
    nodes = graph.training_graph.graph.nodes
    return sorted(nodes[node].name for node in graph.materialized if re.search(pattern, nodes[node].op_type))


def list_ops(build: Build, op_type: str, loss: str | keras.Loss = "mse") -> list[tf.Operation]:
    return [op for op in trace(build, loss)[2].ops.ops if op.type == op_type]


def emit(build: Build, backend: Backend, *, again: bool = False) -> EmittedFunction:
    """What is written of a step that computes each node once; `again`: of one that recomputes all that it may."""
    graph = make_graph(build, backend)
    return emit_for_xla(graph, recompute_all(graph) if again else make_retain_all_schedule(graph.graph))


def recompute_all(xla_graph: XlaGraph) -> Schedule:
    """Each forward node is computed again before the first backward node that reads it."""
    graph, order, seen = xla_graph.graph, [], set()
    for index, node in enumerate(graph.nodes):
        for before in graph.predecessors[index] if node.is_backward else ():
            if before not in seen and graph.nodes[before].recomputable and not graph.nodes[before].is_backward:
                order.append(before)
                seen.add(before)
        order.append(index)
    return Schedule.of(order)


def count_ties(emitted: EmittedFunction) -> int:
    """How many times something waits."""
    names = (re.match(r"checkmate_tie_(\d+)", node.name) for node in emitted.graph_def.node)
    return len({found[1] for found in names if found})
