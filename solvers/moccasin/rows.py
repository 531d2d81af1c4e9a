"""Implied rows of MOCCASIN's model in stages. Most of the strength of its bound comes from them."""

from collections.abc import Mapping, Sequence

from checkmate_tf.graph import Graph
from checkmate_tf.solvers.mip.ortools_library import cp_model
from checkmate_tf.solvers.moccasin.model import Computation
from checkmate_tf.solvers.moccasin.scaling import Scaled

Computations = tuple[tuple[Computation, ...], ...]


def add_eviction_rows(
    model: cp_model.CpModel,
    graph: Graph,
    scaled: Scaled,
    computations: Computations,
    fetches: Mapping[int, Sequence[Computation]],
    max_rows: int,
) -> None:
    """Adds rows for the values that do not fit in memory at a node and therefore have to come back later.

    They are about the values that first computations after node t read. A value that is not in memory at t's first
    computation is computed again or fetched after it, and enough of them have to be for the rest to fit. There is a row
    for each of the `max_rows` nodes t with the most to evict (the "weaker cousin" of a memory row, by the stage of the
    recomputation).
    """
    needs = []
    for node, (first, *_) in enumerate(computations):
        across = _read_across(graph, scaled, node)
        need = _least_at(graph, scaled, node) + sum(scaled.sizes[value] for value in across) - scaled.budget
        if first.fixed and need > 0:
            needs.append((need, node, across))
    needs.sort(key=lambda entry: (-entry[0], entry[1]))
    for need, node, across in sorted(needs[:max_rows], key=lambda entry: entry[1]):
        evicted: dict[int, int] = {}
        for value in across:
            producer = graph.producer[value]
            evicted[producer] = evicted.get(producer, 0) + scaled.sizes[value]
        time = computations[node][0].low
        terms = [min(size, need) * _again_after(model, computations[user][1:], time) for user, size in evicted.items()]
        terms += [
            min(scaled.sizes[value], need) * _again_after(model, fetches[value], time)
            for value in across
            if value in fetches
        ]
        model.add(sum(terms) >= need)


def enforce(constraint: cp_model.Constraint, literal: cp_model.IntVar | None) -> None:
    """Makes a constraint hold only if the literal is true; None is true."""
    if literal is not None:
        constraint.only_enforce_if(literal)


def activity(model: cp_model.CpModel, computation: Computation) -> cp_model.IntVar:
    """Returns the literal of a computation, a constant if it must happen."""
    return model.new_constant(1) if computation.present is None else computation.present


def _again_after(model: cp_model.CpModel, copies: Sequence[Computation], time: int) -> cp_model.IntVar | int:
    """Returns a literal that is true only if one of the copies begins after `time`."""
    later = []
    for copy in copies:
        if copy.low > time or copy.unlimited:
            later.append(activity(model, copy))
        elif copy.high > time:
            literal = model.new_bool_var("")
            enforce(model.add(copy.start >= time + 1), literal)
            if copy.present is not None:
                model.add_implication(literal, copy.present)
            later.append(literal)
    if len(later) <= 1:
        return later[0] if later else 0
    some = model.new_bool_var("")
    model.add_bool_or([*later, ~some])
    return some


def _read_across(graph: Graph, scaled: Scaled, node: int) -> list[int]:
    """Returns values that exist before node t and that later first computations read, but t itself does not."""
    reads = set(graph.nodes[node].inputs)
    outputs = set(graph.outputs)
    across = []
    for value, users in enumerate(graph.users):
        later = value in outputs or (users and users[-1] > node)
        if graph.producer[value] < node and later and value not in reads and scaled.sizes[value]:
            across.append(value)
    return across


def _least_at(graph: Graph, scaled: Scaled, node: int) -> int:
    """Returns the least memory of a node while it runs, with an input taken over if that is possible."""
    entry = graph.nodes[node]
    held = sum(scaled.sizes[value] for value in (*entry.inputs, *entry.outputs))
    sizes = graph.sizes_bytes
    reusable = entry.inplace and entry.outputs and any(sizes[v] == sizes[entry.outputs[0]] for v in entry.inputs)
    return held + scaled.workspaces[node] - (scaled.sizes[entry.outputs[0]] if reusable else 0)
