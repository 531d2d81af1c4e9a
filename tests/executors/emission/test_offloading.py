"""Fetches from host memory (FastSA, appendix B.3) in schedules, the simulator and JSON."""

import json
from dataclasses import replace

import pytest

from checkmate_tf.errors import GraphError, ScheduleError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule, to_stages
from checkmate_tf.serialization import graph_from_json, graph_to_json, schedule_from_json
from checkmate_tf.simulator import simulate, time_schedule
from tests.execution_plan import list_statements
from tests.graphs import graph_of

# a is read by b and, three positions later, by d.
PLAIN = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"}, sizes={"a": 4, "b": 2, "c": 3, "d": 1})
GRAPH = replace(PLAIN, values=(Value("a", 4, offload_cost=5, fetch_cost=7), *PLAIN.values[1:]))


def test_memory_between_last_use_and_fetch_is_free_and_transfers_cost():
    kept = simulate(GRAPH, Schedule((0, 1, 2, 3)))
    fetched = simulate(GRAPH, Schedule((0, 1, 2, 3), ((3, 0),)))
    assert kept.memory_bytes.tolist() == [4, 6, 9, 8]
    assert fetched.memory_bytes.tolist() == [4, 6, 5, 8]
    # a is copied out beside b, for which c waits; d waits for the copy back.
    assert (kept.cost, fetched.cost) == (4, 4 + (5 - 1) + 7)


def test_a_second_fetch_pays_no_second_offload():
    twice = Schedule((0, 1, 2, 1, 3), ((3, 0), (4, 0)))
    check_schedule(GRAPH, twice)
    assert simulate(GRAPH, twice).cost == 5 + (5 - 1) + 2 * 7


def test_fetching_early_hides_the_copying_and_takes_memory():
    early = simulate(GRAPH, Schedule((0, 1, 2, 3), ((2, 0),)))
    assert early.memory_bytes.tolist() == [4, 6, 9, 8]
    # c waits for the copy out, from 1 to 6, and the copy back runs from 6 to 13 beside it.
    assert early.cost == 14


def test_a_copy_held_for_longer_need_not_be_out_so_soon():
    held = Schedule((0, 1, 2, 3), ((3, 0),), ((2, 0),))
    check_schedule(GRAPH, held)
    simulation = simulate(GRAPH, held)
    assert simulation.memory_bytes.tolist() == [4, 6, 9, 8]
    # out from 1 to 6 beside b and c, back from 6 to 13, d
    assert simulation.cost == 14
    timing = time_schedule(GRAPH, held)
    assert (timing.waiting, timing.hidden_share) == (10, pytest.approx(1 - 10 / 12))


def test_where_copies_do_not_hide_they_count_as_nodes_do():
    graph = replace(GRAPH, copies_hide=False)
    for schedule in (Schedule((0, 1, 2, 3), ((3, 0),)), Schedule((0, 1, 2, 3), ((3, 0),), ((2, 0),))):
        assert simulate(graph, schedule).cost == 4 + 12


def test_one_lane_each_way_copies_one_value_at_a_time():
    both = replace(GRAPH, values=(GRAPH.values[0], Value("b", 2, offload_cost=5, fetch_cost=7), *GRAPH.values[2:]))
    both = replace(both, nodes=(*both.nodes[:3], replace(both.nodes[3], inputs=(0, 1, 2))))
    timing = time_schedule(both, Schedule((0, 1, 2, 3), ((3, 0), (3, 1))))
    copied = [(one.value, one.is_fetch, one.begin, one.end) for one in timing.transfers]
    # a is out before c, and b before d, which c's end waits for; the copies back come one after the other.
    assert copied == [(0, False, 1, 6), (1, False, 6, 11), (0, True, 11, 18), (1, True, 18, 25)]
    assert timing.end == (1, 2, 7, 26)


def test_values_of_one_node_are_copied_out_in_the_order_of_its_outputs():
    values = tuple(Value(f"v{number}", 1, offload_cost=2, fetch_cost=1) for number in range(11))
    first = Node("a", "op", (), tuple(range(9)), cost=1)
    graph = Graph((first, Node("b", "op", (), (9,), cost=1), Node("c", "op", (1, 8), (10,), cost=1)), values)
    timing = time_schedule(graph, Schedule((0, 1, 2), fetches=((2, 1), (2, 8))))
    assert [(one.value, one.begin, one.end) for one in timing.transfers[:2]] == [(1, 1, 3), (8, 3, 5)]


def test_an_in_place_node_takes_over_a_fetched_input():
    nodes = (*GRAPH.nodes[:3], replace(GRAPH.nodes[3], inplace=True))
    graph = replace(GRAPH, nodes=nodes, values=(*GRAPH.values[:3], Value("d", 4)))
    assert simulate(graph, Schedule((0, 1, 2, 3), ((3, 0),))).memory_bytes.tolist() == [4, 6, 5, 4 + 3]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule((0, 1, 2, 3), ((0, 0),)), "not computed before"),
        (Schedule((0, 1, 2, 3), ((9, 0),)), "no such position"),
        (Schedule((0, 1, 2, 3), ((3, 2),)), "cannot be offloaded"),
        (Schedule((0, 1, 2, 3), ((3, 0), (1, 0))), "ascending"),
        (Schedule((0, 1, 2, 3), ((2, 0), (3, 0))), "no position reads"),
        (Schedule((0, 1, 2, 3), ((3, 0),), ((3, 0),)), "must end between"),
        (Schedule((0, 1, 2, 3), (), ((2, 0),)), "must end between"),
    ],
)
def test_wrong_fetches_are_refused(schedule, message):
    with pytest.raises(ScheduleError, match=message):
        check_schedule(GRAPH, schedule)


def test_stages_cannot_express_fetches():
    with pytest.raises(ScheduleError, match="without offloading"):
        to_stages(GRAPH, Schedule((0, 1, 2, 3), ((3, 0),)))


def test_the_execution_plan_fetches_before_it_computes():
    plan = [str(statement) for statement in list_statements(GRAPH, Schedule((0, 1, 2, 3), ((3, 0),)))]
    assert plan == [
        "%0 = compute v0",
        "%1 = compute v1",
        "deallocate %0",
        "%2 = compute v2",
        "deallocate %1",
        "%3 = fetch",
        "%4 = compute v3",
        "deallocate %2",
        "deallocate %3",
        "deallocate %4",
    ]


def test_transfer_costs_and_fetches_survive_json():
    for graph in (GRAPH, replace(GRAPH, copies_hide=False)):
        assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph
    written = {"format": "checkmate-schedule/1", "order": [0, 1, 2, 3], "fetches": [[3, 0]]}
    assert schedule_from_json(written) == Schedule((0, 1, 2, 3), ((3, 0),))
    with pytest.raises(ScheduleError, match="pairs"):
        schedule_from_json({**written, "fetches": [[3]]})


def test_one_transfer_cost_alone_is_refused():
    with pytest.raises(GraphError, match="give both"):
        Graph(PLAIN.nodes, (Value("a", 4, offload_cost=5), *PLAIN.values[1:]))
