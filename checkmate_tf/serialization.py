"""Converts graphs to versioned JSON and back, and reads schedules from it; `solution_json` writes these.

A graph file may say where its nodes come from, in optional fields: `layer` and `source` of nodes, `shape` and `dtype`
of values.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from checkmate_tf.errors import GraphError, ScheduleError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.origins import NodeOrigin, Origins, ValueType, guess_origins
from checkmate_tf.schedule import Schedule

GRAPH_FORMAT = "checkmate-graph/1"
SCHEDULE_FORMAT = "checkmate-schedule/1"


def graph_to_json(graph: Graph, origins: Origins | None = None) -> dict[str, Any]:
    """Converts a graph to a `checkmate-graph/1` object. Optional fields are left out where they say nothing."""
    nodes = origins.nodes if origins else repeat(NodeOrigin())
    types = origins.values if origins else repeat(ValueType())
    return {
        "format": GRAPH_FORMAT,
        "name": graph.name,
        "cost_unit": graph.cost_unit,
        "source": graph.source,
        "resident_bytes": graph.resident_bytes,
        "nodes": [
            {
                "name": node.name,
                "op_type": node.op_type,
                "inputs": list(node.inputs),
                "outputs": list(node.outputs),
                "cost": int(node.cost),
                "workspace_bytes": int(node.workspace_bytes),
                "is_backward": node.is_backward,
                "recomputable": node.recomputable,
                **({"inplace": True} if node.inplace else {}),
                **({"layer": origin.layer} if origin.layer else {}),
                **({"source": origin.source} if origin.source else {}),
            }
            for node, origin in zip(graph.nodes, nodes, strict=False)
        ],
        "values": [_value_to_json(value, of) for value, of in zip(graph.values, types, strict=False)],
        "outputs": list(graph.outputs),
    }


def graph_from_json(data: Any) -> Graph:
    """Converts a `checkmate-graph/1` object to a graph. Raises GraphError, which names the place."""
    _check_format(data, GRAPH_FORMAT, GraphError, "graph")
    nodes = tuple(_read_node(entry, index) for index, entry in enumerate(_read_field(data, "nodes", list, "graph")))
    values = tuple(_read_value(entry, index) for index, entry in enumerate(_read_field(data, "values", list, "graph")))
    return Graph(
        nodes=nodes,
        values=values,
        outputs=tuple(_read_field(data, "outputs", list, "graph")),
        resident_bytes=_read_field(data, "resident_bytes", int, "graph", default=0),
        cost_unit=_read_field(data, "cost_unit", str, "graph", default="unit"),
        name=_read_field(data, "name", str, "graph", default="graph"),
        source=_read_field(data, "source", str, "graph", default=""),
    )


def load_graph(path: str | Path) -> Graph:
    """Reads a graph file. Raises GraphError when it is missing, not JSON or not a valid graph."""
    return graph_from_json(_read_json(path, GraphError, "graph"))


def load_origins(path: str | Path) -> Origins:
    """Reads where the nodes of a graph file come from; layers are read from names where the file names none.

    Raises GraphError as `load_graph` does.
    """
    data = _read_json(path, GraphError, "graph")
    guessed = guess_origins(graph_from_json(data))
    if not any("layer" in entry or "source" in entry for entry in data["nodes"]):
        return replace(guessed, values=tuple(map(_read_type, data["values"])))
    nodes = (NodeOrigin(str(entry.get("layer", "")), str(entry.get("source", ""))) for entry in data["nodes"])
    return Origins(tuple(nodes), tuple(map(_read_type, data["values"])))


def save_graph(graph: Graph, path: str | Path, origins: Origins | None = None) -> None:
    """Writes a graph file, which `load_graph` reads, and `load_origins` for where its nodes come from.

    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> save_graph(graph, "graph.json")
    >>> load_graph("graph.json") == graph
    True
    """
    Path(path).write_text(json.dumps(graph_to_json(graph, origins), indent=1), encoding="utf-8")


def schedule_from_json(data: Any) -> Schedule:
    """Converts a `checkmate-schedule/1` object to a schedule. Raises ScheduleError, which names the place."""
    _check_format(data, SCHEDULE_FORMAT, ScheduleError, "schedule")
    order = data.get("order")
    if order is None and "status" in data:
        raise ScheduleError(f"there is no schedule: the solver's status was {data['status']}; solve with more memory")
    if not isinstance(order, list) or not all(type(node) is int and node >= 0 for node in order):
        raise ScheduleError("schedule: 'order' must be a list of node indices")
    fetches = data.get("fetches", [])
    if not isinstance(fetches, list) or not all(_is_pair(pair) for pair in fetches):
        raise ScheduleError("schedule: 'fetches' must be a list of pairs [step, value]")
    return Schedule(tuple(order), tuple((step, value) for step, value in fetches))


def load_schedule(path: str | Path) -> Schedule:
    """Reads a schedule file. Raises ScheduleError when it is missing, not JSON or not a schedule."""
    return schedule_from_json(_read_json(path, ScheduleError, "schedule"))


def _read_json(path: str | Path, error: type[Exception], what: str) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"cannot read {what} {path}: {cause}") from cause
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise error(f"{path} is not JSON: {cause}") from cause


def _read_node(entry: Any, index: int) -> Node:
    place = f"node {index}"
    return Node(
        name=_read_field(entry, "name", str, place),
        op_type=_read_field(entry, "op_type", str, place, default="node"),
        inputs=tuple(_read_field(entry, "inputs", list, place)),
        outputs=tuple(_read_field(entry, "outputs", list, place)),
        cost=_read_field(entry, "cost", int, place),
        workspace_bytes=_read_field(entry, "workspace_bytes", int, place, default=0),
        is_backward=_read_field(entry, "is_backward", bool, place, default=False),
        recomputable=_read_field(entry, "recomputable", bool, place, default=True),
        inplace=_read_field(entry, "inplace", bool, place, default=False),
    )


def _read_value(entry: Any, index: int) -> Value:
    place = f"value {index}"
    name, size_bytes = _read_field(entry, "name", str, place), _read_field(entry, "size_bytes", int, place)
    if "offload_cost" not in entry and "fetch_cost" not in entry:
        return Value(name, size_bytes)
    return Value(
        name, size_bytes, _read_field(entry, "offload_cost", int, place), _read_field(entry, "fetch_cost", int, place)
    )


def _read_type(entry: Any) -> ValueType:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        return ValueType()
    return ValueType(tuple(shape), str(entry.get("dtype", "")))


def _value_to_json(value: Value, described: ValueType) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": value.name, "size_bytes": int(value.size_bytes)}
    if value.fetch_cost is not None and value.offload_cost is not None:
        entry |= {"offload_cost": int(value.offload_cost), "fetch_cost": int(value.fetch_cost)}
    if described.shape is not None:
        entry |= {"shape": list(described.shape), "dtype": described.dtype}
    return entry


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(item) is int and item >= 0 for item in pair)


def _read_field(data: Any, key: str, kind: type, place: str, *, default: Any = None) -> Any:
    if not isinstance(data, Mapping):
        raise GraphError(f"{place} is not an object but {data!r}")
    if key not in data:
        if default is None:
            raise GraphError(f"{place} lacks the field {key!r}")
        return default
    value = data[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise GraphError(f"{key} of {place} is {value!r}; it must be of type {kind.__name__}")
    return value


def _check_format(data: Any, version: str, error: type[Exception], what: str) -> None:
    found = data.get("format") if isinstance(data, Mapping) else None
    if found != version:
        raise error(f"{what} has the format {found!r}; this version reads {version!r}")
