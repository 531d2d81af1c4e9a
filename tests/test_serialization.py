"""JSON of graphs, schedules and solutions: there and back, and what is refused."""

import copy
import json
import os
import pickle
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from checkmate_tf.errors import GraphError, ScheduleError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.origins import NodeOrigin, Origins, ValueType
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.serialization import (
    graph_from_json,
    graph_to_json,
    load_graph,
    load_origins,
    load_schedule,
    save_graph,
    schedule_from_json,
)
from checkmate_tf.simulator import simulate
from checkmate_tf.solution_json import load_solution, save_solution, solution_from_json, solution_to_json
from checkmate_tf.solvers import solve
from tests.graphs import graphs, training_chain


@given(graphs())
@settings(deadline=None, max_examples=100)
def test_graph_there_and_back(graph: Graph) -> None:
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph


def test_graph_file_there_and_back(tmp_path: Path) -> None:
    graph = training_chain(3, size=7)
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph


def test_optional_fields_have_defaults() -> None:
    graph = graph_from_json(
        {
            "format": "checkmate-graph/1",
            "nodes": [{"name": "a", "op_type": "op", "inputs": [], "outputs": [0], "cost": 3}],
            "values": [{"name": "v", "size_bytes": 5}],
            "outputs": [],
        }
    )
    (node,) = graph.nodes
    assert (graph.resident_bytes, graph.cost_unit) == (0, "unit")
    assert (node.workspace_bytes, node.is_backward, node.recomputable, node.inplace) == (0, False, True, False)


def put(*path: str | int) -> Callable[[Any], Callable[[dict[str, Any]], None]]:
    """put("nodes", 0, "cost")(5) gives the edit that sets the cost of node 0 to 5."""

    def with_value(value: Any) -> Callable[[dict[str, Any]], None]:
        def edit(data: Any) -> None:
            for key in path[:-1]:
                data = data[key]
            data[path[-1]] = value

        return edit

    return with_value


def drop(*path: str | int) -> Callable[[dict[str, Any]], None]:
    def edit(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        del data[path[-1]]

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put("format")("checkmate-graph/2"), "has the format 'checkmate-graph/2'; this version reads"),
        (drop("format"), "has the format None"),
        (drop("nodes"), "graph lacks the field 'nodes'"),
        (drop("values"), "graph lacks the field 'values'"),
        (drop("outputs"), "graph lacks the field 'outputs'"),
        (put("nodes")([]), "has no nodes"),
        (put("nodes")({}), "nodes of graph is {}; it must be of type list"),
        (put("nodes", 1)("conv"), "node 1 is not an object but 'conv'"),
        (drop("nodes", 1, "name"), "node 1 lacks the field 'name'"),
        (drop("nodes", 1, "cost"), "node 1 lacks the field 'cost'"),
        (put("nodes", 1, "cost")(float("nan")), "cost of node 1 is nan"),
        (put("nodes", 1, "cost")(float("inf")), "cost of node 1 is inf"),
        (put("nodes", 1, "cost")(-3), "is -3; it must be an integer of at least 0"),
        (put("nodes", 1, "cost")("3"), "cost of node 1 is '3'; it must be of type int"),
        (put("nodes", 1, "cost")(True), "cost of node 1 is True"),
        (put("nodes", 1, "cost")(10**30), "at most"),
        (put("nodes", 1, "is_backward")(1), "is_backward of node 1 is 1; it must be of type bool"),
        (put("nodes", 1, "inputs")([3]), "reads value 3 .*, which no earlier node computes.*cycle"),
        (put("nodes", 1, "inputs")([99]), "99 is not the index of a value"),
        (put("nodes", 1, "inputs")([[0]]), "is not the index of a value"),
        (put("nodes", 1, "inputs")(None), "inputs of node 1 is None"),
        (put("nodes", 1, "outputs")([0]), "has two producers"),
        (put("values", 2, "size_bytes")(1.5), "size_bytes of value 2 is 1.5; it must be of type int"),
        (put("values", 2)(None), "value 2 is not an object but None"),
        (put("outputs")([77]), "77 is not the index of a value"),
        (put("resident_bytes")(-1), "resident_bytes of graph .* is -1"),
    ],
)
def test_malformed_graph_is_one_error_with_the_place(edit: Callable[[Any], None], message: str) -> None:
    data = copy.deepcopy(graph_to_json(training_chain(2)))
    edit(data)
    with pytest.raises(GraphError, match=message):
        graph_from_json(data)


@pytest.mark.parametrize("data", [None, [], 3, "graph"])
def test_json_that_is_no_object(data: Any) -> None:
    with pytest.raises(GraphError, match="has the format None"):
        graph_from_json(data)
    with pytest.raises(ScheduleError, match="has the format None"):
        schedule_from_json(data)


@pytest.mark.parametrize("content", [b"", b"{", b"1" * 5000, b"[" * 100_000, b"\xff\xfe"])
def test_file_that_is_no_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(GraphError, match=r"broken\.json"):
        load_graph(path)
    with pytest.raises(ScheduleError, match=r"broken\.json"):
        load_schedule(path)


@pytest.mark.parametrize("path", ["/dev/zero", "large.json"])
def test_no_more_than_the_largest_file_is_read(path: str, tmp_path: Path) -> None:
    large = tmp_path / path
    if not large.exists():
        large.touch()
        os.truncate(large, 64 * 2**20 + 1)
    tracemalloc.start()
    with pytest.raises(GraphError, match=r"has more than 64\.00 MiB, the most that is read of a graph: join"):
        load_graph(large)
    assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    tracemalloc.stop()
    with pytest.raises(ScheduleError, match=r"has more than 64\.00 MiB"):
        load_schedule(large)


EXECUTION = {"exec", "compile", "import", "pickle.find_class", "os.system", "subprocess.Popen"}
DEEP = "[" * 900 + "]" * 900
LONG = f'"{"x" * 10**6}"'


ABSURD = (DEEP, LONG, "9" * 4000, "1e400", f"[{DEEP}]", f"[{LONG}]", f'{{"a": {DEEP}}}')
PLACES = ("format", "name", "cost_unit", "nodes", "values", "outputs", "resident_bytes", "cost")


@pytest.mark.parametrize("content", ABSURD)
@pytest.mark.parametrize("place", PLACES)
def test_absurd_content_is_one_short_error(content: str, place: str, tmp_path: Path) -> None:
    data = graph_to_json(training_chain(2))
    holder = data["nodes"][1] if place == "cost" else data
    holder[place] = "@"
    path = tmp_path / "absurd.json"
    path.write_text(json.dumps(data).replace('"@"', content))
    with pytest.raises(GraphError) as caught:
        load_graph(path)
    assert len(str(caught.value)) < 500


def test_a_long_name_is_refused_and_an_absurd_status_or_position_is_not_repeated(tmp_path: Path) -> None:
    data = graph_to_json(training_chain(2))
    data["nodes"][3]["name"] = "x" * 65_537
    with pytest.raises(GraphError, match="name of node 3 has 65537 characters; the most that is read is 65536"):
        graph_from_json(data)
    path = tmp_path / "schedule.json"
    for order, status in (("null", DEEP), ("null", LONG), (DEEP, "0"), (f"[{LONG}]", "0")):
        path.write_text(f'{{"format": "checkmate-schedule/1", "order": {order}, "status": {status}}}')
        with pytest.raises(ScheduleError) as caught:
            load_schedule(path)
        assert len(str(caught.value)) < 500
    path.write_text(f'{{"format": "checkmate-schedule/1", "order": [{10**12}], "fetches": [[{2**64}, 0]]}}')
    with pytest.raises(ScheduleError, match=f"position {2**64} fetches"):
        check_schedule(training_chain(2), load_schedule(path))


def test_reading_files_executes_nothing(tmp_path: Path) -> None:
    graph, schedule, hostile = tmp_path / "graph.json", tmp_path / "schedule.json", tmp_path / "hostile.json"
    save_graph(training_chain(2), graph)
    save_solution(solve(training_chain(2), "100%"), training_chain(2), schedule)
    seen: list[str] = []
    watches = Event()

    def note(event: str, _: Any) -> None:
        if watches.is_set() and event in EXECUTION:
            seen.append(event)

    def read_all() -> None:
        load_graph(graph)
        load_origins(graph)
        load_schedule(schedule)
        for content in (
            pickle.dumps(tmp_path),
            b"__import__('os').system('true')",
            b"!!python/object/apply:os.abort []",
        ):
            hostile.write_bytes(content)
            with pytest.raises(GraphError):
                load_origins(hostile)
            with pytest.raises(ScheduleError):
                load_schedule(hostile)

    sys.addaudithook(note)  # it stays, and is told when to look
    read_all()  # what is imported once is imported now
    watches.set()
    read_all()
    watches.clear()
    assert seen == []


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"cannot read graph .*nowhere\.json"):
        load_graph(tmp_path / "nowhere.json")
    with pytest.raises(ScheduleError, match="cannot read schedule"):
        load_schedule(tmp_path)


def test_solution_there_and_back(tmp_path: Path) -> None:
    graph = training_chain(3)
    solution = solve(graph, "100%", solver="retain_all")
    path = tmp_path / "schedule.json"
    save_solution(solution, graph, path)
    assert load_schedule(path) == solution.schedule
    data = json.loads(path.read_text(encoding="utf-8"))
    simulation = simulate(graph, load_schedule(path))
    assert data["format"] == "checkmate-schedule/1"
    assert (data["graph"], data["solver"], data["status"]) == ("chain-3", "retain_all", "OPTIMAL")
    assert (data["peak_bytes"], data["cost"], data["overhead"]) == (simulation.peak_bytes, 7, 0.0)
    assert (data["cost_lower_bound"], data["bound_order"]) == (7, "free")
    assert data["solve_time_s"] >= 0


def test_loaded_solution_is_the_saved_one(tmp_path: Path) -> None:
    graph = training_chain(3, size=1000)
    for budget in (3000, 4000):
        solution = solve(graph, budget, solver="exhaustive")
        save_solution(solution, graph, tmp_path / "schedule.json")
        loaded = load_solution(tmp_path / "schedule.json", graph)
        assert (loaded.simulation is None) == (solution.simulation is None)
        if loaded.simulation is not None and solution.simulation is not None:
            assert loaded.simulation.memory_bytes.tolist() == solution.simulation.memory_bytes.tolist()
        assert loaded.schedule == solution.schedule
        assert replace(loaded, best=None) == replace(solution, best=None, stats={})


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put("format")("checkmate-schedule/2"), "has the format 'checkmate-schedule/2'"),
        (drop("order"), "there is no schedule"),
        (put("order", 0)(99), "computes node 99"),
        (put("order")(None), "'status' is 'OPTIMAL' without an order"),
        (put("status")("INFEASIBLE"), "'status' is 'INFEASIBLE' with an order"),
        (put("status")(["OPTIMAL"]), "it must be of type str"),
        (put("status")("FINE"), "it must be one of OPTIMAL, FEASIBLE, INFEASIBLE, NOT_FOUND"),
        (put("bound_order")("any"), "it must be fixed or free"),
        (put("cost_lower_bound")(True), "it must be of type int"),
        (put("cost_lower_bound")(10**30), "above the cost of"),
        (put("solve_time_s")("long"), "it must be of type float"),
        (drop("solver"), "'solver' is None"),
        (put("cost")(1), "it was saved for another graph"),
        (put("peak_bytes")(1), "it was saved for another graph"),
    ],
)
def test_solutions_that_are_refused(edit: Callable[[dict[str, Any]], None], message: str) -> None:
    graph = training_chain(3, size=1000)
    data = json.loads(json.dumps(solution_to_json(solve(graph, 4000, solver="exhaustive"), graph)))
    edit(data)
    with pytest.raises(ScheduleError, match=message):
        solution_from_json(data, graph)


def test_solution_without_a_schedule() -> None:
    graph = training_chain(3)
    data = json.loads(json.dumps(solution_to_json(solve(graph, 1, solver="retain_all"), graph)))
    assert data["status"] == "INFEASIBLE"
    assert data["order"] is data["peak_bytes"] is data["cost"] is data["overhead"] is None
    with pytest.raises(ScheduleError, match="status was 'INFEASIBLE'"):
        schedule_from_json(data)


@pytest.mark.parametrize("order", [None, "012", [0, -1], [0, 1.0], [True], {"0": 1}])
def test_malformed_order(order: Any) -> None:
    with pytest.raises(ScheduleError, match="must be a list of node indices"):
        schedule_from_json({"format": "checkmate-schedule/1", "order": order})


def test_plain_schedule() -> None:
    assert schedule_from_json({"format": "checkmate-schedule/1", "order": [0, 2, 1]}) == Schedule((0, 2, 1))


def test_origins_travel_with_a_graph(tmp_path: Path) -> None:
    graph = training_chain(1)
    nodes = (NodeOrigin("block/dense", "model.py:4"), NodeOrigin("loss"), NodeOrigin())
    origins = Origins(nodes, (ValueType((2, 3), "float32"), ValueType(), ValueType((), "int64")))
    path = tmp_path / "graph.json"
    save_graph(graph, path, origins)
    assert load_graph(path) == graph
    assert load_origins(path) == origins


def test_layers_are_read_from_names_where_a_file_names_none(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    node = Node("gradient_tape/net_1/conv_1_1/Conv2DBackpropInput", "Conv2DBackpropInput", (), (0,), 1)
    save_graph(Graph((node, replace(node, name="conv_gradient", outputs=(1,))), (Value("a", 1), Value("b", 1))), path)
    assert [origin.layer for origin in load_origins(path).nodes] == ["net/conv_1", "conv"]


def test_numbers_of_numpy_are_written(tmp_path):
    values = (Value("y", np.int64(400)), Value("dx", np.uint32(4), np.int8(1), np.int8(2)))
    nodes = (
        Node("a", "Relu", (), (np.int64(0),), np.int32(2), recomputable=np.bool_(True)),
        Node("b", "Relu", (np.int64(0),), (1,), 3, np.int64(5), is_backward=np.bool_(True)),
    )
    graph = Graph(nodes, values, (np.int64(1),), np.int64(7))
    save_graph(graph, tmp_path / "graph.json")
    assert load_graph(tmp_path / "graph.json") == graph
    solution = solve(graph, "100%")
    best = replace(solution.best, schedule=Schedule(tuple(np.arange(2))))
    save_solution(replace(solution, best=best), graph, tmp_path / "schedule.json")
    assert load_schedule(tmp_path / "schedule.json").order == (0, 1)
