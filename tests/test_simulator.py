"""The simulator against hand-made, published and slowly simulated figures."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule, find_retention
from checkmate_tf.simulator import (
    find_first_beside,
    find_peak_bound,
    find_storage,
    make_retain_all_schedule,
    simulate,
    simulate_stock,
)
from tests.graphs import SLIDES, graph_of, graphs, published, schedules, training_chain


def memory(graph: Graph, order: tuple[int, ...]) -> list[int]:
    return simulate(graph, Schedule(order)).memory_bytes.tolist()


def slow_memory(graph: Graph, order: tuple[int, ...]) -> list[int]:
    """Memory at each position, value by value from the definition in DESIGN's section on types."""
    last = len(order) - 1

    def computed_by(value: int, position: int) -> bool:
        return value in graph.nodes[order[position]].outputs

    def needed_after(value: int, position: int) -> bool:
        """Whether the copy of `value` there is at the end of `position` is read later, or is a graph output."""
        for later in range(position + 1, last + 1):
            if value in graph.nodes[order[later]].inputs:
                return True
            if computed_by(value, later):
                return False
        return value in graph.outputs

    result = []
    for position, index in enumerate(order):
        node = graph.nodes[index]
        exists = [
            v for v in range(len(graph.values)) if any(computed_by(v, earlier) for earlier in range(position + 1))
        ]
        held = {v for v in exists if v in node.inputs or v in node.outputs}
        # Retained across the position: here before it, not computed by it, and needed after it.
        held |= {v for v in exists if not computed_by(v, position) and needed_after(v, position)}
        total = graph.resident_bytes + node.workspace_bytes + sum(graph.values[v].size_bytes for v in held)
        dying = [v for v in node.inputs if not needed_after(v, position)]
        if node.inplace and any(graph.values[v].size_bytes == graph.values[node.outputs[0]].size_bytes for v in dying):
            total -= graph.values[node.outputs[0]].size_bytes
        result.append(total)
    return result


@given(st.data())
@settings(deadline=None)
def test_positions_beside_each_other_keep_within_the_peak(data: st.DataObject) -> None:
    """Any execution in which a position starts once all that it waits for and reads has ended.

    A position takes over the storage of an input that it alone still reads.
    """
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    first = find_first_beside(graph, schedule)
    assert all(begin <= position for position, begin in enumerate(first))
    peak = simulate(graph, schedule).peak_bytes
    intervals = find_retention(graph, schedule)
    copies = list(zip(intervals.value.tolist(), intervals.start.tolist(), intervals.end.tolist(), strict=True))
    positions = [graph.nodes[node] for node in schedule.order]
    last = len(positions) - 1
    readers = [{s for s in range(a + 1, b + 1) if v in positions[s].inputs} for v, a, b in copies]
    reads = [
        {a for (_, a, _), read_by in zip(copies, readers, strict=True) if s in read_by} for s in range(len(positions))
    ]
    started: set[int] = set()
    ended: set[int] = set()
    taken_over: set[int] = set()
    while len(ended) < len(positions):
        may_start = [
            s for s in range(len(positions)) if s not in started and ended >= reads[s] and ended >= set(range(first[s]))
        ]
        kind, position = data.draw(
            st.sampled_from([(started, s) for s in may_start] + [(ended, s) for s in sorted(started - ended)])
        )
        kind.add(position)
        if kind is started and positions[position].inplace:
            size = graph.values[positions[position].outputs[0]].size_bytes
            may_be_taken = [
                copy
                for copy, (v, _, end) in enumerate(copies)
                if position in readers[copy]
                and readers[copy] - {position} <= ended
                and graph.values[v].size_bytes == size
                and end == position
                and not (v in graph.outputs and end == last)
            ]
            taken_over.update(may_be_taken[:1])
        held = [
            graph.values[v].size_bytes
            for copy, ((v, start, end), read_by) in enumerate(zip(copies, readers, strict=True))
            if copy not in taken_over
            and start in started
            and ((v in graph.outputs and end == last) or not ended >= read_by | {start})
        ]
        workspace = sum(positions[s].workspace_bytes for s in started - ended)
        assert graph.resident_bytes + sum(held) + workspace <= peak


def test_storage_is_taken_over_after_its_other_readers() -> None:
    """C writes over a, but not while B may still read it: then both would be held."""
    graph = graph_of({"a": "", "b": "a", "c": "a"}, sizes={"a": 10, "c": 10}, outputs="bc")
    graph = replace(graph, nodes=(*graph.nodes[:2], replace(graph.nodes[2], inplace=True)))
    assert memory(graph, (0, 1, 2)) == [10, 11, 11]
    assert find_first_beside(graph, make_retain_all_schedule(graph)).tolist() == [0, 0, 2]
    roomy = replace(graph, nodes=(replace(graph.nodes[0], workspace_bytes=11), *graph.nodes[1:]))
    assert find_first_beside(roomy, make_retain_all_schedule(roomy)).tolist() == [0, 1, 1]
    # The peak has no room for a and c while b is the first that may still run.
    tight = replace(graph, nodes=(replace(graph.nodes[0], workspace_bytes=5), *graph.nodes[1:]))
    assert find_first_beside(tight, make_retain_all_schedule(tight)).tolist() == [0, 1, 2]


@given(graphs(plain=True))
def test_a_position_waits_for_no_more_than_memory_asks(graph: Graph) -> None:
    """One position earlier, and all from there on together would pass the peak."""
    schedule = make_retain_all_schedule(graph)
    peak = simulate(graph, schedule).peak_bytes
    intervals = find_retention(graph, schedule)
    for position, begin in enumerate(find_first_beside(graph, schedule)):
        if begin:
            together = (intervals.start <= position) & (intervals.end >= begin - 1)
            workspace = sum(node.workspace_bytes for node in graph.nodes[begin - 1 : position + 1])
            assert graph.resident_bytes + graph.sizes_bytes[intervals.value[together]].sum() + workspace > peak


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_simulator_agrees_with_the_definition(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    simulation = simulate(graph, schedule)
    assert simulation.memory_bytes.tolist() == slow_memory(graph, schedule.order)
    assert simulation.cost == sum(graph.nodes[node].cost for node in schedule.order)
    assert simulation.baseline_cost == sum(node.cost for node in graph.nodes)
    assert simulation.peak_bytes == simulation.memory_bytes[simulation.peak_position]
    assert find_peak_bound(graph).peak_bytes <= simulation.peak_bytes


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_storage_adds_up_to_memory(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    storage = find_storage(graph, schedule)
    for position, memory_bytes in enumerate(simulate(graph, schedule).memory_bytes.tolist()):
        live = storage.value[(storage.start <= position) & (storage.end >= position)]
        workspace_bytes = graph.nodes[schedule.order[position]].workspace_bytes
        assert graph.resident_bytes + int(graph.sizes_bytes[live].sum()) + workspace_bytes == memory_bytes


def test_one_output_takes_over_the_storage_of_one_input() -> None:
    """Though two inputs of its size die where it is computed."""
    graph = graph_of({"a": "", "x": "", "b": "ax"}, sizes={"a": 5, "x": 5, "b": 5})
    graph = replace(graph, nodes=(*graph.nodes[:2], replace(graph.nodes[2], inplace=True)))
    assert find_storage(graph, Schedule((0, 1, 2))).end.tolist() == [1, 2, 2]


def test_figure_1_of_twremat() -> None:
    """Unit outputs; D reads B and C, E reads A and D: 4 units, 3 when A is computed again after D."""
    graph = graph_of({"A": "", "B": "A", "C": "B", "D": "BC", "E": "AD"})
    assert simulate(graph, Schedule((0, 1, 2, 3, 4))).peak_bytes == 4
    assert memory(graph, (0, 1, 2, 3, 4))[3] == 4, "the peak is at D"
    again = simulate(graph, Schedule((0, 1, 2, 3, 0, 4)))
    assert again.peak_bytes == 3
    assert again.overhead == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9), [50, 100, 100, 150, 200, 151, 102, 102, 52, 2]),
        # 1 is discarded after 2 and computed again before 8, with 0, which it needs.
        ((0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 8, 9), [50, 100, 100, 100, 150, 101, 52, 52, 51, 101, 52, 2]),
        # 1 and 2 are both computed again before 7, and 1 is retained to 8.
        ((0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 7, 8, 9), [50, 100, 100, 100, 100, 51, 2, 51, 101, 101, 102, 52, 2]),
    ],
)
def test_ten_nodes_of_moccasins_slides(order: tuple[int, ...], expected: list[int]) -> None:
    assert memory(SLIDES, order) == expected
    assert simulate(SLIDES, Schedule(order)).cost == len(order)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("fcn8-b32-train", 13_484_795_520),
        ("resnet50-b256-train", 38_059_356_160),
        ("vgg16-b256-train", 15_825_108_992),
        ("rl-g1-n100", 46_319),
        ("rl-g2-n250", 146_840),
    ],
)
def test_published_peaks_without_rematerialization(name: str, peak: int) -> None:
    graph = published(name)
    simulation = simulate_stock(graph)
    assert simulation.peak_bytes == peak
    assert simulation.cost == graph.baseline_cost
    assert simulation.overhead == 0


def test_training_chain_by_hand() -> None:
    """Two layers, unit sizes: all that the backward pass reads is held at the position of the last layer's gradient."""
    assert memory(training_chain(2), (0, 1, 2, 3, 4)) == [1, 2, 3, 4, 3]


def test_outputs_of_a_node_are_retained_apart() -> None:
    """A BatchNorm's statistics outlive its output."""
    nodes = (
        Node("norm", "op", (), (0, 1), 1),
        Node("act", "op", (0,), (2,), 1),
        Node("grad", "op", (1, 2), (3,), 1),
    )
    graph = Graph(nodes, (Value("output", 100), Value("statistics", 1), Value("act", 100), Value("grad", 100)))
    assert memory(graph, (0, 1, 2)) == [101, 201, 201]


def test_resident_and_workspace_bytes() -> None:
    graph = graph_of({"a": "", "b": "a"}, sizes={"a": 10, "b": 20})
    nodes = (graph.nodes[0], replace(graph.nodes[1], workspace_bytes=7))
    assert memory(replace(graph, nodes=nodes, resident_bytes=1000), (0, 1)) == [1010, 1037]


@pytest.mark.parametrize(
    ("edges", "sizes", "outputs", "expected"),
    [
        ({"a": "", "b": "a"}, {}, "", 1),  # b takes over a's storage
        ({"a": "", "b": "a"}, {"a": 2}, "", 3),  # not of equal size
        ({"a": "", "b": "a", "c": "ab"}, {}, "", 2),  # a is read again
        ({"a": "", "b": "a"}, {}, "a", 2),  # a must exist at the end
        ({"a": "", "x": "", "b": "ax"}, {}, "", 2),  # only one of two dying inputs
    ],
)
def test_inplace_output(edges: dict[str, str], sizes: dict[str, int], outputs: str, expected: int) -> None:
    graph = graph_of(edges, sizes=sizes, outputs=outputs)
    nodes = tuple(replace(node, inplace=node.name == "b") for node in graph.nodes)
    position = list(edges).index("b")
    assert memory(replace(graph, nodes=nodes), tuple(range(len(nodes))))[position] == expected


def test_peak_bound_by_hand() -> None:
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "c"}, sizes={"a": 1, "b": 5, "c": 7, "d": 1}, outputs="a")
    assert (find_peak_bound(graph).node, find_peak_bound(graph).peak_bytes) == (2, 12)
    wide = graph_of({"a": "", "b": "", "c": ""}, sizes={"a": 5, "b": 5, "c": 5}, outputs="abc")
    assert find_peak_bound(wide).peak_bytes == 15, "outputs exist together at the end"


def test_peak_bound_of_a_node_that_yields_nothing() -> None:
    nodes = (Node("a", "op", (), (0,), 1), Node("log", "op", (0,), (), 1, workspace_bytes=2, inplace=True))
    assert find_peak_bound(Graph(nodes, (Value("a", 4),))).peak_bytes == 6


def test_free_work_has_no_overhead() -> None:
    graph = graph_of({"a": "", "b": "a"}, costs={"a": 0, "b": 0})
    assert simulate(graph, Schedule((0, 1, 0))).overhead == 0


def test_cost_of_a_long_schedule_is_beyond_64_bits() -> None:
    graph = Graph((Node("a", "op", (), (), cost=10**14),), ())
    assert simulate(graph, Schedule((0,) * 100_000)).cost == 10**19
