"""Converts graphs to versioned JSON and back, and reads schedules from it. `solution_json` is for solutions.

A graph file may describe the origins of its nodes in optional fields: `layer` and `source` of nodes, `shape` and
`dtype` of values.
"""

import json
import reprlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

from checkmate_tf.budget import format_bytes
from checkmate_tf.errors import GraphError, ScheduleError, quote
from checkmate_tf.files import write_file
from checkmate_tf.graph import Graph, Node, Value, check_graph
from checkmate_tf.origins import NodeOrigin, Origins, ValueType, guess_origins
from checkmate_tf.schedule import Schedule

GRAPH_FORMAT = "checkmate-graph/1"
SCHEDULE_FORMAT = "checkmate-schedule/1"
# Enough for some 200,000 nodes. Reading a file may take thirty times its size in memory.
_LARGEST_FILE_BYTES = 64 << 20
_LONGEST_TEXT = 1 << 16


def graph_to_json(graph: Graph, origins: Origins | None = None) -> dict[str, Any]:
    """Converts a graph to a `checkmate-graph/1` object. Optional fields are left out if they are empty."""
    nodes = origins.nodes if origins else repeat(NodeOrigin())
    types = origins.values if origins else repeat(ValueType())
    return {
        "format": GRAPH_FORMAT,
        "name": graph.name,
        "cost_unit": graph.cost_unit,
        "source": graph.source,
        "resident_bytes": int(graph.resident_bytes),
        **({} if graph.copies_hide else {"copies_hide": False}),
        "nodes": [
            {
                "name": node.name,
                "op_type": node.op_type,
                "inputs": list(map(int, node.inputs)),
                "outputs": list(map(int, node.outputs)),
                "cost": int(node.cost),
                "workspace_bytes": int(node.workspace_bytes),
                "is_backward": bool(node.is_backward),
                "recomputable": bool(node.recomputable),
                **({"inplace": True} if node.inplace else {}),
                **({"layer": origin.layer} if origin.layer else {}),
                **({"source": origin.source} if origin.source else {}),
            }
            for node, origin in zip(graph.nodes, nodes, strict=False)
        ],
        "values": [_value_to_json(value, of) for value, of in zip(graph.values, types, strict=False)],
        "outputs": list(map(int, graph.outputs)),
    }


def graph_from_json(data: Any) -> Graph:
    """Converts a `checkmate-graph/1` object to a graph. Raises GraphError, which names the place."""
    check_format(data, GRAPH_FORMAT, GraphError, "graph")
    nodes = tuple(_read_node(*entry) for entry in _list_objects(data, "nodes"))
    values = tuple(_read_value(*entry) for entry in _list_objects(data, "values"))
    return Graph(
        nodes=nodes,
        values=values,
        outputs=tuple(_read_field(data, "outputs", list, "graph")),
        resident_bytes=_read_field(data, "resident_bytes", int, "graph", default=0),
        cost_unit=_read_field(data, "cost_unit", str, "graph", default="unit"),
        name=_read_field(data, "name", str, "graph", default="graph"),
        source=_read_field(data, "source", str, "graph", default=""),
        copies_hide=_read_field(data, "copies_hide", bool, "graph", default=True),
    )


def load_graph(path: str | Path) -> Graph:
    """Reads a graph file.

    Args:
        path: a file in the format `checkmate-graph/1`.

    Returns:
        The graph.

    Raises:
        GraphError: if the file is missing, not JSON or not a valid graph.

    Example:

    >>> save_graph(Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,)), "graph.json")
    >>> load_graph("graph.json").nodes[0].name
    'relu'
    """
    return graph_from_json(read_json(path, GraphError, "graph"))


def load_origins(path: str | Path) -> Origins:
    """Returns the origins of the nodes of a graph file. Without them in the file, layers are read from names.

    Raises GraphError as `load_graph` does.
    """
    data = read_json(path, GraphError, "graph")
    return origins_from_json(data, graph_from_json(data))


def origins_from_json(data: Any, graph: Graph) -> Origins:
    """Returns the origins of the nodes of a `checkmate-graph/1` object, from which `graph` was made."""
    guessed = guess_origins(graph)
    types = tuple(_read_type(*entry) for entry in _list_objects(data, "values"))
    if not any("layer" in entry or "source" in entry for entry in data["nodes"]):
        return replace(guessed, values=types)
    return Origins(tuple(_read_origin(*entry) for entry in _list_objects(data, "nodes")), types)


def save_graph(graph: Graph, path: str | Path, origins: Origins | None = None) -> None:
    """Writes a graph file, which `load_graph` and `load_origins` read.

    Args:
        graph: the graph.
        path: the file.
        origins: the origins of its nodes, which are written into the file, too.

    Raises:
        GraphError: if `graph` is not a graph, or `origins` are not Origins.

    Example:

    >>> graph = Graph((Node("relu", "Relu", (), (0,), cost=2),), (Value("y", 400),), outputs=(0,))
    >>> save_graph(graph, "graph.json")
    >>> load_graph("graph.json") == graph
    True
    """
    check_graph(graph)
    if origins is not None and not isinstance(origins, Origins):
        raise GraphError(f"origins are {quote(origins)}; they must be Origins, such as load_origins returns")
    write_file(path, json.dumps(graph_to_json(graph, origins), indent=1))


def schedule_from_json(data: Any) -> Schedule:
    """Converts a `checkmate-schedule/1` object to a schedule. Raises ScheduleError, which names the place."""
    check_format(data, SCHEDULE_FORMAT, ScheduleError, "schedule")
    order = data.get("order")
    if order is None and "status" in data:
        status = reprlib.repr(data["status"])
        raise ScheduleError(f"there is no schedule: the solver's status was {status}; solve with a larger budget")
    if not isinstance(order, list) or not all(type(node) is int and node >= 0 for node in order):
        raise ScheduleError("schedule: 'order' must be a list of node indices")
    pairs = {name: data.get(name, []) for name in ("fetches", "offloads")}
    for name, listed in pairs.items():
        if not isinstance(listed, list) or not all(_is_pair(pair) for pair in listed):
            raise ScheduleError(f"schedule: {name!r} must be a list of pairs [position, value]")
    transfers = {name: tuple((position, value) for position, value in listed) for name, listed in pairs.items()}
    return Schedule(tuple(order), **transfers)


def load_schedule(path: str | Path) -> Schedule:
    """Reads a schedule file.

    Args:
        path: a file in the format `checkmate-schedule/1`.

    Returns:
        The schedule. `load_solution` checks it against its graph.

    Raises:
        ScheduleError: if the file is missing, not JSON or not a schedule.

    Example:

    >>> text = json.dumps({"format": "checkmate-schedule/1", "order": [0, 1, 0, 2]})
    >>> _ = Path("schedule.json").write_text(text, encoding="utf-8")
    >>> load_schedule("schedule.json").order
    (0, 1, 0, 2)
    """
    return schedule_from_json(read_json(path, ScheduleError, "schedule"))


def read_json(path: str | Path, error: type[Exception], what: str) -> Any:
    """Reads a JSON file. Raises the given error if that fails.

    It reads at most the size of the largest file allowed, because a file may be endless, as /dev/zero is.
    """
    try:
        path = Path(path)
    except TypeError as cause:
        raise error(f"cannot read {what} {quote(path)}: it is no path") from cause
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
        text = content.decode() if len(content) <= _LARGEST_FILE_BYTES else None
    except (OSError, ValueError) as cause:  # ValueError: a name with a null character, or bytes that are not text
        raise error(f"cannot read {what} {path}: {cause}") from cause
    if text is None:
        raise error(
            f"{path} has more than {format_bytes(_LARGEST_FILE_BYTES)}, the most that is read of a {what}: "
            "join small nodes into larger ones"
        )
    try:
        return json.loads(text)
    except RecursionError as cause:
        raise error(f"{path} is no {what}: its JSON is nested too deeply") from cause
    except ValueError as cause:
        raise error(f"{path} is not JSON: {cause}") from cause


def _list_objects(data: dict[str, Any], key: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Lists the objects of a list, each with its place for messages."""
    for index, entry in enumerate(_read_field(data, key, list, "graph")):
        place = f"{key[:-1]} {index}"
        if not isinstance(entry, dict):
            raise GraphError(f"{place} is not an object but {reprlib.repr(entry)}")
        yield entry, place


def _read_node(entry: dict[str, Any], place: str) -> Node:
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


def _read_value(entry: dict[str, Any], place: str) -> Value:
    name, size_bytes = _read_field(entry, "name", str, place), _read_field(entry, "size_bytes", int, place)
    if "offload_cost" not in entry and "fetch_cost" not in entry:
        return Value(name, size_bytes)
    return Value(
        name, size_bytes, _read_field(entry, "offload_cost", int, place), _read_field(entry, "fetch_cost", int, place)
    )


def _read_origin(entry: dict[str, Any], place: str) -> NodeOrigin:
    layer, source = (_read_field(entry, key, str, place, default="") for key in ("layer", "source"))
    return NodeOrigin(layer, source)


def _read_type(entry: dict[str, Any], place: str) -> ValueType:
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int for size in shape):
        return ValueType()
    return ValueType(tuple(shape), _read_field(entry, "dtype", str, place, default=""))


def _value_to_json(value: Value, described: ValueType) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": value.name, "size_bytes": int(value.size_bytes)}
    if value.fetch_cost is not None and value.offload_cost is not None:
        entry |= {"offload_cost": int(value.offload_cost), "fetch_cost": int(value.fetch_cost)}
    if described.shape is not None:
        entry |= {"shape": list(map(int, described.shape)), "dtype": described.dtype}
    return entry


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(item) is int and item >= 0 for item in pair)


def _read_field(data: dict[str, Any], key: str, kind: type, place: str, *, default: Any = None) -> Any:
    value: Any = data.get(key, default)
    if type(value) is not kind:  # a bool is an int for isinstance
        if value is None and key not in data:
            raise GraphError(f"{place} lacks the field {key!r}")
        raise GraphError(f"{key} of {place} is {reprlib.repr(value)}; it must be of type {kind.__name__}")
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        raise GraphError(f"{key} of {place} has {len(value)} characters; the most that is read is {_LONGEST_TEXT}")
    return value


def check_format(data: Any, version: str, error: type[Exception], what: str) -> None:
    """Raises an error unless the data are an object of this format."""
    found = data.get("format") if isinstance(data, dict) else None
    if found != version:
        raise error(f"{what} has the format {reprlib.repr(found)}; this version reads {version!r}")
