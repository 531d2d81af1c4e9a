"""What a plan knows, on graphs small enough to count by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.executors.step import Chunks
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.origins import guess_origins
from checkmate_tf.reports.plan import Plan
from checkmate_tf.reports.records import list_kinds, list_peak_values, list_recomputations
from checkmate_tf.reports.summary import shorten, summarize
from checkmate_tf.reports.view import KINDS, PlanView, Timeline
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from tests.graphs import graph_of, graphs, schedules, training_chain
from tests.plans import make_plan

# f0 f1 f2 loss b2 b1 b0, a kilobyte each: all four forward values and a gradient are there at b2, the stock peak.
CHAIN = training_chain(3, size=1000)


def view_of(graph: Graph, *order: int, fetches: tuple[tuple[int, int], ...] = ()) -> PlanView:
    return PlanView(graph.name, graph, Schedule(order, fetches), guess_origins(graph))


# f0 again before f1, both for b1; then f0 is held for b0.
TWICE = view_of(CHAIN, 0, 1, 2, 3, 4, 0, 1, 5, 6)


def test_recomputations_say_what_they_are_for() -> None:
    first, second = list_recomputations(TWICE)
    assert (first.name, first.times, first.cost, first.freed_bytes) == ("f0", 1, 1, 1000)
    assert (first.readers, first.for_layers) == (("f1", "b1", "b0"), ("b1",))
    assert (second.name, second.readers, second.for_layers) == ("f1", ("b1",), ("b1",))
    assert TWICE.rematerialized.served.tolist() == [-1, -1, -1, -1, -1, 7, 7, -1, -1]
    assert TWICE.rematerialized.is_again.nonzero()[0].tolist() == [5, 6]


def test_only_what_is_let_go_counts_as_freed() -> None:
    """Both outputs of a are computed again, and nothing reads the second one then."""
    nodes = (Node("a", "op", (), (0, 1), 1), Node("c", "op", (0, 1), (2,), 1), Node("d", "op", (0, 2), (3,), 1))
    graph = Graph(nodes, tuple(Value(name, size) for name, size in (("a", 5), ("b", 7), ("c", 1), ("d", 1))))
    (again,) = list_recomputations(view_of(graph, 0, 1, 0, 2))
    assert (again.name, again.freed_bytes, again.readers) == ("a", 5, ("d",))


def test_values_at_the_peak_by_hand() -> None:
    values = list_peak_values(view_of(CHAIN, 0, 1, 2, 3, 4, 0, 1, 5, 6))
    stock = [(value.kind, value.name, value.size_bytes) for value in values if value.step == "stock"]
    assert stock == [
        ("activation", "f0", 1000),
        ("activation", "f1", 1000),
        ("activation", "f2", 1000),
        ("activation", "loss", 1000),
        ("gradient", "b2", 1000),
    ]


def test_resident_parts_and_workspace_are_among_them() -> None:
    graph = replace(
        CHAIN, resident_bytes=70, nodes=(*CHAIN.nodes[:4], replace(CHAIN.nodes[4], workspace_bytes=9), *CHAIN.nodes[5:])
    )
    view = replace(view_of(graph, *range(7)), resident={"parameters": 50, "batch": 0})
    found = {value.kind: value.size_bytes for value in list_peak_values(view) if value.step == "stock"}
    assert (found["parameters"], found["other resident"], found["workspace"]) == (50, 20, 9)
    assert "batch" not in found


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_everything_adds_up_to_the_simulated_memory(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    view = PlanView("random", graph, schedule, guess_origins(graph))
    simulation = simulate(graph, schedule)
    timeline = Timeline(graph, schedule)
    assert (sum(timeline.bands.values()) + graph.resident_bytes).tolist() == simulation.memory_bytes.tolist()
    assert timeline.begin[-1] == simulation.cost
    for step, one in (("stock", view.stock), ("rematerialized", view.rematerialized)):
        assert sum(v.size_bytes for v in list_peak_values(view) if v.step == step) == one.simulation.peak_bytes
        assert sum(num_bytes for _, num_bytes in list_kinds(view, one)) == one.simulation.peak_bytes
    assert sum(one.times for one in list_recomputations(view)) == len(schedule) - len(graph.nodes)


def test_fetches_cost_and_are_no_first_copies() -> None:
    graph = graph_of({"a": "", "b": "a", "c": "ab"})
    graph = replace(graph, values=(replace(graph.values[0], offload_cost=5, fetch_cost=3), *graph.values[1:]))
    timeline = Timeline(graph, Schedule((0, 1, 2), ((2, 0),)))
    # a is out at 6, five after it was computed; c waits for that, and three more for the copy back.
    assert np.diff(timeline.begin).tolist() == [1, 1, 8]
    assert timeline.readers == ((1,), (2,), ())
    assert timeline.kind[timeline.storage.fetched].tolist() == [KINDS.index("activations copied back")]


def test_a_summary_has_the_plans_numbers() -> None:
    plan = make_plan(CHAIN, 4000)
    assert "3.91 KiB at its peak (predicted).\nThe budget is 3.91 KiB; the stock step takes 4.88 KiB" in plan.summary()
    stock = replace(plan.planned.stock, run=StepRun(6000))
    measured = Plan(replace(plan.planned, stock=stock, run=StepRun(4096)))
    assert "takes 4.00 KiB at its peak (measured)" in measured.summary()
    assert "all, measured            5.86 KiB          4.00 KiB" in measured.summary()
    assert "Nothing is computed again." in make_plan(CHAIN, "100%").summary()
    in_chunks = replace(view_of(CHAIN, *range(7)), chunks=(Chunks("blocks", num_rows=64, chunk_rows=16),))
    again = "Their gradients compute each chunk again; predicted times do not include that.\nNothing else is computed"
    assert again in summarize(in_chunks)
    long_names = replace(CHAIN, nodes=tuple(replace(n, name=f"{'x' * 99}/{n.name}") for n in CHAIN.nodes))
    long = Plan(replace(plan.planned, origins=guess_origins(long_names)))
    assert max(map(len, long.summary().splitlines())) <= 100
    assert "Solver" not in summarize(view_of(CHAIN, *range(7)))


@pytest.mark.parametrize(("text", "width", "expected"), [("abcdef", 6, "abcdef"), ("abcdefghijklmn", 9, "abc...lmn")])
def test_long_names_lose_their_middle(text: str, width: int, expected: str) -> None:
    assert shorten(text, width) == expected


def test_records_make_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    plan = make_plan(CHAIN, 4000)
    table = pandas.DataFrame(plan.peak_values())
    assert table.groupby("step")["size_bytes"].sum().to_dict() == {"stock": 5000, "rematerialized": 4000}
    assert pandas.DataFrame(plan.recomputed)["name"].tolist() == ["f0"]
