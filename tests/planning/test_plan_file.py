"""Plan files: what is written is read again, and differences from another step are said in words."""

import json
from dataclasses import replace

import pytest

import checkmate_tf
from checkmate_tf.errors import PlanError
from checkmate_tf.executors.step import ResidentBytes
from checkmate_tf.measurement.difference import StepDifference, UpdateDifference
from checkmate_tf.measurement.step_run import StepRun
from checkmate_tf.planning.plan_file import list_differences, planned_from_json, planned_to_json
from checkmate_tf.planning.planned_step import Conditions, PlannedStep
from tests.graphs import training_chain
from tests.plans import make_plan

CHAIN = training_chain(3, size=1000)
CONDITIONS = Conditions("graph executor", "float32[8, 6]", "a processor", "0.1.0", "2.21.0", "3.15.1")


@pytest.fixture
def planned() -> PlannedStep:
    run = StepRun(4096, 0.5, 12, StepDifference(1e-7, "kernel", 1e-6, (UpdateDifference("bias", 2.0, 1.5),)))
    return replace(make_plan(CHAIN, 4000).planned, conditions=CONDITIONS, run=run)


def test_a_plan_is_read_as_it_was_written(planned: PlannedStep) -> None:
    again = planned_from_json(json.loads(json.dumps(planned_to_json(planned))))
    assert again.schedule == planned.schedule
    assert again.overhead == planned.overhead
    assert again.solution.gap == planned.solution.gap
    for name in ("graph", "budget_bytes", "ordering", "run", "stock", "resident", "origins", "conditions"):
        assert getattr(again, name) == getattr(planned, name), name


def test_a_plan_can_be_looked_at_without_its_model(planned: PlannedStep, tmp_path) -> None:
    plan = checkmate_tf.Plan(planned)
    plan.save(tmp_path / "plan.json")
    loaded = checkmate_tf.load_plan(tmp_path / "plan.json")
    assert str(loaded) == str(plan)
    assert loaded.recomputed == plan.recomputed
    loaded.to_html(tmp_path / "plan.html")
    assert "chain-3" in (tmp_path / "plan.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "checkmate-plan/9"}, "has the format 'checkmate-plan/9'; this version reads 'checkmate-plan/2'"),
        ({"budget_bytes": "much"}, "'budget_bytes' is 'much'; it must be of type int"),
        ({"ordering": "sideways"}, "'ordering' is 'sideways'; it must be null or chain or overlap"),
        ({"run": 3}, "'run' is 3; it must be an object or null"),
        ({"resident": {"parameters": 1}}, "'optimizer' is None; it must be of type int"),
        ({"graph": {"format": "checkmate-graph/1"}}, "graph lacks the field 'nodes'"),
    ],
)
def test_a_damaged_plan_is_refused_by_place(planned: PlannedStep, change: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        planned_from_json(planned_to_json(planned) | change)


def test_a_schedule_of_another_graph_is_refused(planned: PlannedStep) -> None:
    data = planned_to_json(planned)
    data["graph"]["values"][0]["size_bytes"] = 10_000
    with pytest.raises(PlanError, match="it was saved for another graph"):
        planned_from_json(data)


def test_what_differs_is_said(planned: PlannedStep) -> None:
    graph, resident = planned.graph, planned.resident
    assert list_differences(planned, graph, resident, CONDITIONS) == []
    renamed = replace(graph, nodes=tuple(replace(node, name="x", cost=node.cost + 1) for node in graph.nodes))
    elsewhere = replace(CONDITIONS, device="another processor")
    assert list_differences(planned, renamed, ResidentBytes(prefetched=100), elsewhere) == []
    now = replace(CONDITIONS, tensorflow="2.20.0", batch="float32[9, 6]", executor="XLA")
    assert list_differences(planned, graph, resident, now) == [
        "TensorFlow 2.20.0 instead of 2.21.0",
        "executor XLA instead of graph executor",
        "batches of float32[9, 6] instead of float32[8, 6]",
    ]
    assert list_differences(planned, graph, ResidentBytes(optimizer=2048), CONDITIONS) == [
        "an optimizer state of 2.00 KiB instead of 0 B"
    ]
    other = training_chain(4, size=1000)
    assert list_differences(planned, other, resident, CONDITIONS) == [
        "9 nodes instead of 7",
        "node 3 is f3, which yields 1000 B, instead of loss, which yields 1000 B",
    ]
