"""Schedules: checks, retention intervals, Algorithm 1's statements, and R and S."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import ScheduleError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, check_schedule, drop_unread, find_retention, from_stages, to_stages
from checkmate_tf.simulator import simulate
from tests.execution_plan import list_statements
from tests.graphs import graph_of, graphs, schedules, training_chain

# a -> b -> c, and d reads a and c.
SKIP = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"}, outputs="d")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 2, 0, 3), (0, 0, 1, 2, 3, 3), (0, 1, 2, 3, 0, 1)])
def test_valid_schedules(order: tuple[int, ...]) -> None:
    check_schedule(SKIP, Schedule(order), order="fixed")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((), r"node 0 \(a\) is never computed"),
        ((0, 1, 2), r"node 3 \(d\) is never computed"),
        ((0, 2, 1, 3), r"position 1 \(node 2, c\) reads node 1 \(b\) before it is computed"),
        ((0, 1, 2, 4), "position 3 computes node 4; the graph has nodes 0 to 3"),
        ((-1, 0, 1, 2, 3), "position 0 computes node -1"),
    ],
)
def test_invalid_schedules(order: tuple[int, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check_schedule(SKIP, Schedule(order))


def test_fixed_order_is_about_first_computations() -> None:
    graph = graph_of({"a": "", "b": "", "c": "ab"})
    check_schedule(graph, Schedule((1, 0, 2)))
    with pytest.raises(ScheduleError, match="against the fixed input order"):
        check_schedule(graph, Schedule((1, 0, 2)), order="fixed")
    check_schedule(graph, Schedule((0, 1, 0, 2)), order="fixed")


def test_node_that_is_not_recomputable_runs_once() -> None:
    nodes = (replace(SKIP.nodes[0], recomputable=False), *SKIP.nodes[1:])
    graph = replace(SKIP, nodes=nodes)
    check_schedule(graph, Schedule((0, 1, 2, 3)))
    with pytest.raises(
        ScheduleError, match=r"position 3 \(node 0, a\) computes a node that is not recomputable a second"
    ):
        check_schedule(graph, Schedule((0, 1, 2, 0, 3)))


def intervals(graph: Graph, order: tuple[int, ...]) -> list[tuple[int, int, int]]:
    copies = find_retention(graph, Schedule(order))
    return list(zip(copies.value.tolist(), copies.start.tolist(), copies.end.tolist(), strict=True))


def test_retention_intervals_by_hand() -> None:
    assert intervals(SKIP, (0, 1, 2, 3)) == [(0, 0, 3), (1, 1, 2), (2, 2, 3), (3, 3, 3)]
    # The first copy of a dies at its last use before a is computed again.
    assert intervals(SKIP, (0, 1, 2, 0, 3)) == [(0, 0, 1), (0, 3, 4), (1, 1, 2), (2, 2, 4), (3, 4, 4)]
    # A copy that nothing reads is held only by the position that computes it; an output, to the end.
    assert intervals(SKIP, (0, 1, 2, 3, 1, 3, 0)) == [
        (0, 0, 5),
        (0, 6, 6),
        (1, 1, 2),
        (1, 4, 4),
        (2, 2, 5),
        (3, 3, 3),
        (3, 5, 6),
    ]


def test_statements_of_algorithm_1_by_hand() -> None:
    plan = [str(statement) for statement in list_statements(SKIP, Schedule((0, 1, 2, 0, 3)))]
    assert plan == [
        "%0 = compute v0",
        "%1 = compute v1",
        "deallocate %0",
        "%2 = compute v2",
        "deallocate %1",
        "%3 = compute v0",
        "%4 = compute v3",
        "deallocate %2",
        "deallocate %3",
    ]


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_statements_run_on_a_register_machine(data: st.DataObject) -> None:
    """Interpreting Algorithm 1's program: every input is there, nothing is freed twice, only outputs remain."""
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    register_of: dict[int, int] = {}
    held: set[int] = set()
    computed = []
    for statement in list_statements(graph, schedule):
        if statement.action == "deallocate":
            assert set(statement.registers) <= held
            held -= set(statement.registers)
            continue
        node = graph.nodes[statement.node]
        assert all(register_of[value] in held for value in node.inputs)
        assert not set(statement.registers) & set(register_of.values())
        register_of.update(zip(node.outputs, statement.registers, strict=True))
        held |= set(statement.registers)
        computed.append(statement.node)
    assert tuple(computed) == schedule.order
    assert held == {register_of[value] for value in graph.outputs}


def test_r_and_s_by_hand() -> None:
    stages = to_stages(SKIP, Schedule((0, 1, 2, 0, 3)))
    assert stages.recompute.astype(int).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    assert stages.retain.astype(int).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_stages_there_and_back(data: st.DataObject) -> None:
    """R gives the schedule, the schedule gives R; S retains exactly what (1b) and (1c) of Checkmate ask for."""
    graph = data.draw(graphs())
    num_nodes = len(graph.nodes)
    recompute = np.eye(num_nodes, dtype=bool)
    for stage in range(1, num_nodes):
        earlier = [node for node in range(stage) if graph.nodes[node].recomputable]
        for node in data.draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else ():
            recompute[stage, node] = True
    schedule = from_stages(graph, recompute)
    stages = to_stages(graph, schedule)
    np.testing.assert_array_equal(stages.recompute, recompute)
    # (1c): retained into a stage only what was computed or retained in the stage before.
    by_value = recompute[:, list(graph.producer)]
    assert not stages.retain[0].any()
    assert not (stages.retain[1:] & ~(stages.retain[:-1] | by_value[:-1])).any()
    # (1b): a node computed in a stage finds each input retained, or computed in the stage.
    for stage, node in zip(*np.nonzero(recompute), strict=True):
        for value in graph.nodes[node].inputs:
            assert by_value[stage, value] or stages.retain[stage, value]


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 1, 2, 0), (0, 1, 1, 1, 2), (0, 1, 0, 0, 2)])
def test_schedules_without_stages(order: tuple[int, ...]) -> None:
    graph = graph_of({"a": "", "b": "", "c": "ab"})
    with pytest.raises(ScheduleError, match=r"stages|fixed input order"):
        to_stages(graph, Schedule(order))


def test_r_of_a_wrong_shape_or_without_a_diagonal() -> None:
    graph = training_chain(1)
    with pytest.raises(ScheduleError, match=r"R has shape \(2, 3\); the graph needs \(3, 3\)"):
        from_stages(graph, np.zeros((2, 3), dtype=bool))
    with pytest.raises(ScheduleError, match="is never computed"):
        from_stages(graph, np.zeros((3, 3), dtype=bool))


def test_schedule_of_numpy_integers() -> None:
    schedule = Schedule.of(np.arange(3, dtype=np.int32))
    assert schedule == Schedule((0, 1, 2))
    assert len(schedule) == 3
    assert all(type(node) is int for node in schedule.order)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 2, 3), (0, 1, 2, 3)),
        ((0, 1, 2, 0, 3), (0, 1, 2, 0, 3)),  # both copies of a are read
        ((0, 0, 1, 2, 3), (0, 1, 2, 3)),
        ((0, 1, 0, 1, 2, 3), (0, 1, 2, 3)),  # the first b is not read, nor is the first a then
        ((0, 1, 2, 3, 0, 1), (0, 1, 2, 3)),
        ((0, 1, 2, 3, 0, 3), (0, 1, 2, 0, 3)),  # d is an output: its last copy is the one that is held
    ],
)
def test_computations_that_nothing_reads_are_dropped(order: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert drop_unread(SKIP, Schedule(order)).order == expected


def test_what_is_read_from_host_memory_is_computed_for_it() -> None:
    values = tuple(replace(value, offload_cost=1, fetch_cost=1) for value in SKIP.values)
    graph = replace(SKIP, values=values)
    schedule = Schedule((0, 1, 2, 3), ((3, 0),))
    assert drop_unread(graph, schedule) is schedule


@given(data=st.data())
@settings(max_examples=60)
def test_dropping_keeps_what_is_read_and_costs_no_memory(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    shorter = drop_unread(graph, schedule)
    check_schedule(graph, shorter)
    before, after = simulate(graph, schedule), simulate(graph, shorter)
    assert after.cost <= before.cost
    assert after.peak_bytes <= before.peak_bytes
    assert drop_unread(graph, shorter) is shorter
