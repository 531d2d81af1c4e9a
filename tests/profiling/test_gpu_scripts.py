"""The scripts for GPU machines, on this CPU: with TensorFlow, and the way to a machine with JAX alone and back."""

import json

import keras

from checkmate_tf.profiling.cache import DeviceKey, ProfileCache
from checkmate_tf.profiling.costs import StoredCosts, cost_training_graph
from checkmate_tf.training.model_step import trace_model_step
from experiments.gpu import stablehlo_table
from experiments.gpu.export_stablehlo import export_nodes, export_steps, plain_stablehlo
from experiments.gpu.import_profile import device_key_of, measurements_of
from experiments.gpu.run_tensorflow import run


def small_model() -> keras.Model:
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def test_a_model_is_profiled_and_its_steps_run_with_tensorflow(tmp_path, capsys):
    figures = run(
        small_model(),
        1024,
        budgets=["90%"],
        solver="stage_annealing",
        time_limit_s=5,
        rounds=1,
        cache_path=tmp_path / "c",
    )
    assert figures["num_measured"] == figures["num_signatures"] > 0
    steps = json.loads(json.dumps(figures))["steps"]
    assert [step["name"] for step in steps] == ["in order", "budget 90%"]
    assert all(step["recorded_peak_bytes"] > 0 and step["measured_s"] > 0 for step in steps)
    assert "budget 90%" in capsys.readouterr().out


def test_node_times_from_elsewhere_are_costs_here(tmp_path):
    step = trace_model_step(small_model(), 8)
    known: set[str] = set()
    entries = export_nodes(step, tmp_path, "small", known)
    assert {entry["signature"] for entry in entries} == known
    assert export_nodes(step, tmp_path, "again", known) == []
    assert entries
    assert all("module @" in (tmp_path / entry["file"]).read_text() for entry in entries)
    document = {"device": "NVIDIA H200", "driver": "580.1", "jax": "0.11.2", "tensorflow": "2.21.0"}
    # As run_jax.py writes it; a whole step has no signature.
    document["results"] = [
        {
            "signature": entry["signature"],
            "op_types": entry["op_types"],
            "cost_ns": 1000.0 * number,
            "relative_spread": 0.01,
            "repeats": 20,
            "temporary_bytes": 64,
        }
        for number, entry in enumerate(entries, start=1)
    ] + [{"name": "step_small_stock"}]
    key = device_key_of(document)
    assert key == DeviceKey("NVIDIA H200", "2.21.0", "JAX 0.11.2, driver 580.1")
    with ProfileCache(tmp_path / "c") as cache:
        assert cache.add(key, measurements_of(document)) == len(entries)
    costed = cost_training_graph(step.training_graph, StoredCosts(key, tmp_path / "c", default_ns=7))
    expected = {1000 * number for number in range(1, len(entries) + 1)}
    assert costed.graph.cost_unit == "ns"
    assert expected <= {node.cost for node in costed.graph.nodes} <= expected | {7}


def test_steps_are_exported_with_each_tie_and_told_beside_the_stock_one(tmp_path):
    entries = export_steps(
        small_model(), "small", 1024, ["90%"], ["barrier", "select"], time_limit_s=5, folder=tmp_path
    )
    assert [(entry["budget"], entry["tie"]) for entry in entries] == [
        ("stock", None), ("90%", "barrier"), ("90%", "select")
    ]  # fmt: skip
    stock, *others = ((tmp_path / entry["file"]).read_text() for entry in entries)
    assert "optimization_barrier" not in stock
    assert ["optimization_barrier" in text for text in others] == [True, False]
    assert max(entry["predicted_temporary_bytes"] for entry in entries[1:]) < entries[0]["predicted_temporary_bytes"]
    took = {"time_ns": 3e6, "device_peak_bytes": None}
    for entry in entries:  # "select" twice what was predicted
        more = 2 if entry["tie"] == "select" else 1
        entry |= took | {"temporary_bytes": more * entry["predicted_temporary_bytes"]}
    *_, barrier, select = stablehlo_table.lines(entries)
    assert barrier == "barrier: 1 of 1 as predicted, 1.00 to 1.00 times it"
    assert select == "select: 0 of 1 as predicted, 2.00 to 2.00 times it"


def test_modules_are_left_with_stablehlo_alone():
    text = (
        "module @step attributes {mhlo.num_partitions = 1 : i32} {\n  %1 = mhlo.copy %0 : tensor<2x3xf32>\n"
        '  %2 = stablehlo.add %1, %1 {mhlo.frontend_attributes = {a = "b"}} : tensor<2x3xf32>\n}\n'
    )
    assert plain_stablehlo(text) == (
        "module @step {\n  %1 = stablehlo.reshape %0 : (tensor<2x3xf32>) -> tensor<2x3xf32>\n"
        "  %2 = stablehlo.add %1, %1 : tensor<2x3xf32>\n}\n"
    )
