"""Converts planned steps to versioned JSON and back, and describes how the step of a plan differs from another one.

A plan file contains the training graph with its costs, the schedule, the measurements, and the conditions of the plan.
It can be read and drawn without the model.
"""

import json
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import GraphError, PlanError, ScheduleError, quote
from checkmate_tf.executors.emission.ordering import Ordering
from checkmate_tf.executors.step import Chunked, Chunks, ResidentBytes
from checkmate_tf.files import write_file
from checkmate_tf.graph import Graph, check_graph
from checkmate_tf.measurement.difference import StepDifference, UpdateDifference
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.patterns import Kind
from checkmate_tf.planning.pattern_costs import PatternCost
from checkmate_tf.planning.planned_step import Conditions, PlannedStep, Stock
from checkmate_tf.serialization import check_format, graph_from_json, graph_to_json, origins_from_json, read_json
from checkmate_tf.solution_json import solution_from_json, solution_to_json

PLAN_FORMAT = "checkmate-plan/2"


def planned_to_json(planned: PlannedStep) -> dict[str, Any]:
    """Converts a planned step to a `checkmate-plan/2` object."""
    return {
        "format": PLAN_FORMAT,
        "conditions": asdict(planned.conditions),
        "budget_bytes": planned.budget_bytes,
        "margin_bytes": planned.margin_bytes,
        "state_cost": planned.state_cost,
        "ordering": planned.ordering,
        "chunks": [asdict(one) for one in planned.chunks],
        "resident": asdict(planned.resident),
        "stock": {"predicted_bytes": planned.stock.predicted_bytes, "run": _run_to_json(planned.stock.run)},
        "run": _run_to_json(planned.run),
        "patterns": [asdict(one) for one in planned.patterns],
        "solution": solution_to_json(planned.solution, planned.graph),
        "graph": graph_to_json(planned.graph, planned.origins),
    }


def planned_from_json(data: Any) -> PlannedStep:
    """Converts a `checkmate-plan/2` object to a planned step. Raises PlanError, which names the place."""
    check_format(data, PLAN_FORMAT, PlanError, "plan")
    try:
        graph = graph_from_json(_read_object(data, "graph"))
        check_graph(graph)
        solution = solution_from_json(_read_object(data, "solution"), graph)
    except (GraphError, ScheduleError) as error:
        raise PlanError(f"plan: {error}") from error
    if solution.best is None:
        raise PlanError(f"plan: 'solution' has no schedule; its status is {solution.status}")
    ordering = data.get("ordering")
    if ordering is not None and ordering not in get_args(Ordering):
        raise PlanError(f"plan: 'ordering' is {quote(ordering)}; it must be null or {' or '.join(get_args(Ordering))}")
    stock = _read_object(data, "stock")
    return PlannedStep(
        budget_bytes=_read_field(data, "budget_bytes", int),
        graph=graph,
        solution=solution,
        ordering=ordering,
        run=_run_from_json(data.get("run"), "run"),
        stock=Stock(_read_field(stock, "predicted_bytes", int), _run_from_json(stock.get("run"), "run of stock")),
        resident=ResidentBytes(**_read_fields(data, "resident", ResidentBytes, int)),
        origins=origins_from_json(data["graph"], graph),
        conditions=Conditions(**_read_fields(data, "conditions", Conditions, str)),
        chunks=tuple(map(_chunks_from_json, _read_field(data, "chunks", list))),
        margin_bytes=_read_field(data, "margin_bytes", int),
        patterns=tuple(map(_pattern_from_json, _read_field(data, "patterns", list))),
        state_cost=_read_field(data, "state_cost", int),
    )


def _chunks_from_json(data: Any) -> Chunks:
    what = _read_field(data, "what", str)
    if what not in get_args(Chunked):
        raise PlanError(f"plan: 'what' of 'chunks' is {quote(what)}; it must be {' or '.join(get_args(Chunked))}")
    counts = (_read_field(data, name, int) for name in ("num_rows", "chunk_rows", "num_regions"))
    return Chunks(what, *counts)


def save_planned(planned: PlannedStep, path: str | Path) -> None:
    """Writes a plan file."""
    write_file(path, json.dumps(planned_to_json(planned)))


def load_planned(path: str | Path) -> PlannedStep:
    """Reads a plan file. Raises PlanError if it is missing, not JSON or not a plan."""
    return planned_from_json(read_json(path, PlanError, "plan"))


def list_differences(planned: PlannedStep, graph: Graph, resident: ResidentBytes, now: Conditions) -> list[str]:
    """Lists, in words, how the planned step differs from another one; nothing if the plan serves both.

    Another device is not a difference, because a plan depends on it only by the costs of nodes. Neither are prefetched
    batches, which depend on the data.

    Args:
        graph: the graph of the other step. Its names, costs and workspace do not matter.
        resident: the bytes that the other step always holds.
        now: the conditions of the other step.
    """
    before = planned.conditions
    found = [
        f"{what} {theirs} instead of {mine}"
        for what, mine, theirs in (
            ("checkmate_tf", before.checkmate_tf, now.checkmate_tf),
            ("TensorFlow", before.tensorflow, now.tensorflow),
            ("Keras", before.keras, now.keras),
            ("executor", before.executor, now.executor),
            ("batches of", before.batch, now.batch),
        )
        if mine != theirs
    ]
    held = (
        ("parameters of", planned.resident.parameters, resident.parameters),
        ("an optimizer state of", planned.resident.optimizer, resident.optimizer),
        ("other state of", planned.resident.other_state, resident.other_state),
        ("offloaded state of", planned.resident.offloaded, resident.offloaded),
    )
    for what, mine, theirs in held:
        if mine != theirs:
            found.append(f"{what} {format_bytes(theirs)} instead of {format_bytes(mine)}")
    return found + list(_list_graph_differences(planned.graph, graph))


def _list_graph_differences(planned: Graph, graph: Graph) -> Iterator[str]:
    """Describes the first node in which one graph differs from another."""
    if len(planned.nodes) != len(graph.nodes):
        yield f"{len(graph.nodes)} nodes instead of {len(planned.nodes)}"
    for number, (mine, theirs) in enumerate(zip(planned.nodes, graph.nodes, strict=False)):
        if _describe_node(planned, number) != _describe_node(graph, number):
            sizes = [
                " and ".join(format_bytes(of.values[value].size_bytes) for value in node.outputs) or "nothing"
                for of, node in ((planned, mine), (graph, theirs))
            ]
            found, before = f"{theirs.name}, which yields {sizes[1]}", f"{mine.name}, which yields {sizes[0]}"
            yield f"node {number} is {found}, instead of {before}"
            return
    if len(planned.nodes) == len(graph.nodes) and planned.outputs != graph.outputs:
        yield "other results"


def _describe_node(graph: Graph, number: int) -> tuple[Any, ...]:
    """Returns everything about a node on which a schedule depends."""
    node = graph.nodes[number]
    sizes = tuple(graph.values[value].size_bytes for value in node.outputs)
    flags = (node.is_backward, node.recomputable, node.inplace)
    return node.op_type, node.inputs, node.outputs, sizes, flags


def _run_to_json(run: StepRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    data = asdict(run)
    if run.difference is not None:
        data["difference"]["updates"] = [asdict(one) for one in run.difference.updates]
    return data


def _run_from_json(data: Any, place: str) -> StepRun | None:
    if data is None:
        return None
    if not isinstance(data, dict):
        raise PlanError(f"plan: {place!r} is {reprlib.repr(data)}; it must be an object or null")
    step_s = data.get("step_s")
    return StepRun(
        _read_field(data, "peak_bytes", int),
        None if step_s is None else _read_field(data, "step_s", float),
        _read_field(data, "held_bytes", int),
        _difference_from_json(data.get("difference")),
        _read_field(data, "is_compiled", bool),
    )


def _difference_from_json(data: Any) -> StepDifference | None:
    if data is None:
        return None
    updates = [
        UpdateDifference(
            _read_field(one, "name", str), _read_field(one, "share", float), _read_field(one, "stock_share", float)
        )
        for one in _read_field(data, "updates", list)
    ]
    return StepDifference(
        _read_field(data, "share", float),
        _read_field(data, "name", str),
        _read_field(data, "allowed", float),
        tuple(updates),
    )


def _pattern_from_json(data: Any) -> PatternCost:
    kind = _read_field(data, "kind", str)
    if kind not in get_args(Kind):
        raise PlanError(f"plan: 'kind' of a pattern is {quote(kind)}; it must be {' or '.join(get_args(Kind))}")
    return PatternCost(
        kind,
        _read_field(data, "pattern", str),
        _read_field(data, "num_nodes", int),
        _read_field(data, "num_fixed", int),
        _read_field(data, "overhead_without", float),
    )


def _read_object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    return _read_field(data, key, dict)


def _read_fields(data: Mapping[str, Any], key: str, of_class: type, kind: type) -> dict[str, Any]:
    """Reads the fields of a dataclass, all of one type."""
    found = _read_object(data, key)
    names = [field.name for field in fields(of_class)]
    return {name: _read_field(found, name, kind) for name in names}


def _read_field(data: Any, key: str, kind: type) -> Any:
    value = data.get(key) if isinstance(data, dict) else None
    if type(value) is not kind:  # a bool is an int for isinstance
        raise PlanError(f"plan: {key!r} is {quote(value)}; it must be of type {kind.__name__}")
    return value
