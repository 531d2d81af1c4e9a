"""Traces, against the format's own rules and the simulator's figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from checkmate_tf.reports.plan import Plan
from checkmate_tf.reports.trace import make_trace
from checkmate_tf.simulator import simulate, simulate_stock
from tests.graphs import training_chain
from tests.plans import make_plan

CHAIN = replace(training_chain(3, size=1000, cost=4000), cost_unit="ns", resident_bytes=10)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(CHAIN, 4010)


def test_every_event_has_what_the_format_asks_for(plan: Plan, tmp_path: Path) -> None:
    """The fields that the format's description requires of complete, counter and metadata events."""
    plan.to_trace(tmp_path / "plan.json")
    trace = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
        elif event["ph"] == "C":
            assert event["ts"] >= 0
            assert all(isinstance(number, int) for number in event["args"].values())
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["tid"], int)


@pytest.mark.parametrize("process", [1, 2])
def test_nodes_follow_each_other_and_memory_is_the_simulators(plan: Plan, process: int) -> None:
    simulation = simulate_stock(CHAIN) if process == 1 else simulate(CHAIN, plan.schedule)
    events = [event for event in make_trace(plan.view)["traceEvents"] if event["pid"] == process]
    nodes = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] for event in nodes] == [4 * position for position in range(len(nodes))]
    assert sum(event["dur"] for event in nodes) * 1000 == simulation.cost
    for counter in ("memory (bytes)", "memory by kind (bytes)"):
        *counts, last = [sum(event["args"].values()) for event in events if event["name"] == counter]
        assert counts == simulation.memory_bytes.tolist()
        assert last == 10


def test_recomputations_are_marked(plan: Plan) -> None:
    again = [event for event in make_trace(plan.view)["traceEvents"] if event.get("cat") == "computed again"]
    assert [(event["name"], event["pid"], event["args"]["computed for"]) for event in again] == [("f0 again", 2, "b1")]
