"""The scripts for GPU machines, on this CPU: with TensorFlow, and the way to a machine with JAX alone and back."""

import gzip
import inspect
import json
import time
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.executors.emission.function import EmittedFunction
from checkmate_tf.executors.xla.costs import cut_nodes
from checkmate_tf.executors.xla.hlo.memory import compile_step, read_xla_memory
from checkmate_tf.profiling.signature import Fragment
from checkmate_tf.training.batches import guess_spec
from checkmate_tf.training.step_part import complete_step
from experiments.gpu import fit_on_gpu, fit_parts, page
from experiments.gpu.export_stablehlo import Exporter, Results, make_part, plain_stablehlo
from experiments.peers.models import MODELS as PEER_MODELS

BATCH_SIZE = 1024


def small_model() -> keras.Model:
    keras.utils.clear_session()
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def small_batch(batch_size: int | None) -> tuple[keras.Model, tuple[np.ndarray, np.ndarray]]:
    rows = batch_size or BATCH_SIZE
    return small_model(), (np.ones((rows, 64), "float32"), np.zeros(rows, "int64"))


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """What is reported; the small model has the name "small". The pool of this process grows as it needs to."""
    monkeypatch.setitem(fit_parts._MODELS, "small", small_batch)
    monkeypatch.setattr(fit_parts, "reserve_pool", lambda _: 0)
    return []


def test_all_measurements_can_be_called_and_have_names_of_their_own():
    names = [each.name for each in fit_on_gpu.MEASUREMENTS]
    assert len(set(names)) == len(names)
    assert [each.part for each in fit_on_gpu.MEASUREMENTS] == sorted(each.part for each in fit_on_gpu.MEASUREMENTS)
    for each in fit_on_gpu.MEASUREMENTS:
        for small in (False, True):
            point = each.choose_point(small=small)
            inspect.signature(getattr(fit_parts, each.function)).bind(print, fit_parts.EFFORT, **point)
            assert point.get("model", "readme") in (*fit_parts._MODELS, *PEER_MODELS)


def test_predictions_are_reported_beside_what_was_measured(results):
    fit_parts.predict_and_measure(
        lambda **line: results.append(line), fit_parts.SMALL_EFFORT, model="small", batch_size=BATCH_SIZE
    )
    profile, *steps = json.loads(json.dumps(results))
    assert profile["num_nodes"] > profile["not_measured"] == 0
    assert steps[0]["name"] == "in order"
    assert all(step["recorded_peak_bytes"] > 0 and step["measured_s"] > 0 for step in steps)


def test_what_fails_is_reported_and_the_next_budget_is_tried(results, monkeypatch):
    """Here the plan runs out of memory, and training stock before and planned after it goes on."""
    plan, calls = checkmate_tf.rematerialize, []

    def rematerialize(model, **options):
        calls.append(options["budget"])
        if len(calls) == 1:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        quick = {"options": checkmate_tf.Options(costs="flops"), "measure": False, "time_limit_s": 2}
        return plan(model, **(options | quick))

    monkeypatch.setattr(checkmate_tf, "rematerialize", rematerialize)
    fit_parts.train_within_budgets(
        lambda **line: results.append(line), fit_parts.SMALL_EFFORT, model="small", budgets=["70%", "90%"]
    )
    stock, failed, planned = results
    assert [line["budget"] for line in results] == ["stock", "70%", "90%"]
    assert "ResourceExhaustedError: OOM" in failed["error"]
    assert stock["differs_from_stock"] == 0
    assert planned["differs_from_stock"] < 1e-3
    steps = fit_parts.SMALL_EFFORT.steps
    assert all(len(line[f"{way}_peaks_bytes"]) == steps for line in (stock, planned) for way in ("fit", "batch"))


def test_all_ends_by_the_given_minute_and_each_outcome_is_written(tmp_path):
    """One that is not there fails, one that takes longer is stopped, and one that there is no time for is left out."""
    card = next(each for each in fit_on_gpu.MEASUREMENTS if each.name == "card")
    chosen = [
        fit_on_gpu.Measurement("a", "no such name", "see_card", 60, {"is": "unknown"}),
        replace(card, most_s=1),
        fit_on_gpu.Measurement("b", "late", "see_card", 60, {"left": "out"}),
    ]
    output = tmp_path / "results.jsonl"
    fit_on_gpu.run_all(chosen[:2], output, end=time.monotonic() + 60, small=True)
    fit_on_gpu.run_all(chosen[2:], output, end=time.monotonic() + 1, small=True)
    lines = fit_on_gpu.read_lines(output)
    outcomes = {line["name"]: line["outcome"] for line in lines if "outcome" in line}
    assert outcomes == {"no such name": "failed", "card": "stopped", "late": "left out"}
    assert "not enough values" in next(line["error"] for line in lines if line["name"] == "no such name")
    assert "no such name" in fit_on_gpu.show(lines)


def write_results(folder, model: keras.Model) -> None:
    """What run_jax.py writes of the first export, but that the stock step is compiled for this CPU."""
    spec, part = guess_spec(model, BATCH_SIZE), make_part(model, BATCH_SIZE)
    stock = complete_step(part, spec, EmittedFunction(part.trace(spec)))
    module = compile_step(stock, spec.flat)
    memory = read_xla_memory(module)
    module.ClearField("buffer_assignment")  # a GPU's has none
    for computation in module.hlo_module.computations:
        for instruction in computation.instructions:
            instruction.metadata.op_name = f"jit(step_small_stock)/call_exported/{instruction.metadata.op_name}"
    (folder / "step_small_stock.pb.gz").write_bytes(gzip.compress(module.SerializeToString()))
    step = {
        "name": "step_small_stock",
        "temporary_bytes": memory.temporary_bytes,
        "output_bytes": memory.output_bytes,
        "argument_bytes": memory.argument_bytes,
    }
    (folder / "results.json").write_text(json.dumps({"results": [step]}))


def test_steps_are_exported_then_planned_of_what_they_were_compiled_to(tmp_path):
    first = Exporter(tmp_path, time_limit_s=5)
    first.export_budgets(small_model(), "small", BATCH_SIZE, ["55%"])
    assert [module["name"] for module in first.modules] == ["step_small_stock"]
    write_results(tmp_path, small_model())

    second = Exporter(tmp_path, 5, Results.read(tmp_path))
    second.export_budgets(small_model(), "small", BATCH_SIZE, ["55%"])
    second.write_manifest()
    modules = json.loads((tmp_path / "manifest.json").read_text())["modules"]
    steps = [module for module in modules if "signature" not in module]
    assert modules[: len(steps)] == steps  # nodes come last
    assert len(modules) > len(steps)
    assert [(step["budget"], step.get("costs")) for step in steps] == [("stock", None), ("55%", "roofline")]
    stock, planned = ((tmp_path / step["file"]).read_text() for step in steps)
    assert "optimization_barrier" not in stock
    assert "optimization_barrier" in planned
    assert steps[1]["predicted_temporary_bytes"] < steps[0]["predicted_temporary_bytes"]


def test_times_of_nodes_from_elsewhere_are_costs_here(tmp_path):
    write_results(tmp_path, small_model())
    untimed = Exporter(tmp_path, 5, Results.read(tmp_path)).export_stock(small_model(), "small", BATCH_SIZE)
    cuts = [cut for cut in cut_nodes(untimed.xla_graph) if isinstance(cut, Fragment)]
    cost_ns = {signature: 1000.0 * number for number, signature in enumerate({cut.signature for cut in cuts}, 1)}
    document = json.loads((tmp_path / "results.json").read_text())
    document["results"] += [{"signature": signature, "cost_ns": cost} for signature, cost in cost_ns.items()]
    (tmp_path / "results.json").write_text(json.dumps(document))
    results = Results.read(tmp_path)
    assert results.costs == "measured"
    timed = Exporter(tmp_path, 5, results).export_stock(small_model(), "small", BATCH_SIZE)
    assert {node.cost for node in timed.graph.nodes} >= set(cost_ns.values())


def test_steps_are_told_beside_the_stock_one_and_the_peer(tmp_path):
    def step(model: str, budget: str, temporary_bytes: int, time_ns: float) -> dict:
        about = {"model": model, "budget": budget, "temporary_bytes": temporary_bytes, "time_ns": time_ns}
        return {**about, "overhead": 0.25, "costs": "roofline", "device_peak_bytes": temporary_bytes}

    steps = [
        step("small", "stock", 8 << 20, 2e6),
        step("small", "60%", 4 << 20, 3e6),
        step("blocks_small", "stock", 8 << 20, 2e6),
        step("blocks_small", "peer", 4 << 20, 4e6),
        step("blocks_small", "equal", 4 << 20, 3e6),
    ]
    document = {
        "device": "H100",
        "driver": "580.1",
        "jax": "0.11.2",
        "environment": {"commit": "abc", "versions": "keras 3"},
        "results": [*steps, {"signature": "of a node"}],
    }
    page.add(document, tmp_path / "gpu.csv")
    page.add(document, tmp_path / "gpu.csv")
    rows = page.read_rows(tmp_path / "gpu.csv")
    assert [row["run"] for row in rows] == ["1"] * 5 + ["2"] * 5
    assert {row["commit"] for row in rows} == {"abc"}
    within = page.budget_lines(rows[:5])
    assert [(line["budget"], line["over stock"]) for line in within] == [("stock", 1), ("60%", 1.5)]
    (equal,) = page.peer_lines(rows[5:])
    assert (equal["run"], equal["ours over peer"], equal["peer, MiB"]) == ("2", 0.75, 4)


def test_modules_are_left_with_stablehlo_alone():
    text = (
        "module @step attributes {mhlo.num_partitions = 1 : i32} {\n  %1 = mhlo.copy %0 : tensor<2x3xf32>\n"
        '  %2 = stablehlo.add %1, %1 {mhlo.frontend_attributes = {a = "b"}} : tensor<2x3xf32>\n}\n'
    )
    assert plain_stablehlo(text) == (
        "module @step {\n  %1 = stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<2x3xf32>\n"
        "  %2 = stablehlo.add %1, %1 : tensor<2x3xf32>\n}\n"
    )


def test_booleans_are_written_as_bytes():
    text = '    %c = stablehlo.constant dense<"0x0503"> : tensor<3x4xi1> loc(#loc1)\n'
    given = "010001000000000001010000"
    assert plain_stablehlo(text) == (
        f'    %c_bytes = stablehlo.constant dense<"0x{given}"> : tensor<3x4xi8>\n'
        "    %c = stablehlo.convert %c_bytes : (tensor<3x4xi8>) -> tensor<3x4xi1> loc(#loc1)\n"
    )
