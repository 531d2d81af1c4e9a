"""Times of schedules with transfers: against a loop over all positions, as the docstring of `time_schedule` says."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import ScheduleError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.simulator import find_offload_ends, time_schedule
from tests.graphs import training_graphs


@st.composite
def offloading_schedules(draw: st.DrawFn) -> tuple[Graph, Schedule]:
    """Random schedules that recompute, fetch, and hold values until they are out."""
    graph = draw(training_graphs(max_layers=4))
    values = [replace(value, offload_cost=draw(st.integers(0, 9)), fetch_cost=3) for value in graph.values]
    outputs = draw(st.lists(st.sampled_from(range(len(values))), max_size=3, unique=True))
    graph = replace(graph, values=tuple(values), outputs=tuple(outputs))
    order = list(range(len(graph.nodes)))
    for node in draw(st.lists(st.sampled_from(order), max_size=2)):
        if graph.nodes[node].recomputable:
            order.insert(draw(st.integers(order.index(node) + 1, len(order))), node)
    pairs = st.tuples(st.integers(0, len(order) - 1), st.integers(0, len(values) - 1))
    schedule = Schedule(tuple(order))
    for part in ("fetches", "offloads"):
        for pair in draw(st.lists(pairs, max_size=6, unique=True)):
            longer = replace(schedule, **{part: tuple(sorted([*getattr(schedule, part), pair]))})
            try:
                check_schedule(graph, longer)
            except ScheduleError:
                continue
            schedule = longer
    return graph, schedule


def _time_all_positions(graph: Graph, schedule: Schedule) -> tuple[list[int], list[int]]:
    """The beginning and the end of each position."""
    must_be_out = {last + 1: [] for last in find_offload_ends(graph, schedule).values()}
    for value, last in find_offload_ends(graph, schedule).items():
        must_be_out[last + 1].append(value)
    fetched = {value for _, value in schedule.fetches}
    out: dict[int, int] = {}
    back: dict[int, int] = {}
    begin, end = [], []
    now = lane_out = lane_back = 0
    for position, number in enumerate(schedule.order):
        node = graph.nodes[number]
        now = max([now, *(out[value] for value in must_be_out.get(position, ()))])
        for value in [value for at, value in schedule.fetches if at == position]:
            back[value] = lane_back = max(now, lane_back, out[value]) + graph.values[value].fetch_cost
        now = max([now, *(back.pop(value) for value in node.inputs if value in back)])
        begin.append(now)
        now += node.cost
        end.append(now)
        for value in node.outputs:
            if value in fetched and value not in out:
                out[value] = lane_out = max(now, lane_out) + graph.values[value].offload_cost
    end[-1] = max([now, *back.values()])
    return begin, end


@settings(deadline=None, max_examples=150)
@given(offloading_schedules())
def test_times_are_those_of_a_loop_over_all_positions(case):
    graph, schedule = case
    timing = time_schedule(graph, schedule)
    assert (list(timing.begin), list(timing.end)) == _time_all_positions(graph, schedule)


def test_a_step_ends_when_its_outputs_are_back():
    nodes = (Node("a", "op", (), (0,), cost=1), Node("b", "op", (), (1,), cost=5), Node("c", "op", (1,), (2,), cost=1))
    graph = Graph(nodes, (Value("a", 1, 2, 4), Value("b", 1), Value("c", 1)), outputs=(0,))
    assert time_schedule(graph, Schedule((0, 1, 2), fetches=((2, 0),))).end == (1, 8, 12)
