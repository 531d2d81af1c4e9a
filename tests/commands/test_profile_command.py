"""`checkmate-tf profile`: its report, its export, and models as they are named on the command line."""

import importlib.util
import json
import sys

import pytest

from checkmate_tf.cli import main
from checkmate_tf.commands.models import load_model
from checkmate_tf.errors import UnsupportedModelError
from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache

KEY = DeviceKey("a processor, 2 threads", "2.21.0", "oneDNN on")


@pytest.fixture
def cache(tmp_path):
    with ProfileCache(tmp_path / "profiles.sqlite") as cache:
        cache.add(KEY, [Measurement(name, "MatMul", 5.0, 0.01, 3, 64, 1.0) for name in "ab"])
    return str(tmp_path / "profiles.sqlite")


def test_export_prints_what_is_kept(cache, capsys):
    assert main(["profile", "export", "--cache", cache]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert [entry["signature"] for entry in profile["measurements"]] == ["a", "b"]


def test_an_unknown_model_is_bad_input(capsys):
    assert main(["profile", "NoSuchNet"]) == 2
    assert "NoSuchNet is not a model of keras.applications" in capsys.readouterr().err


def test_models_are_found_by_function_file_and_name(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import keras\n"
        "def small():\n"
        "    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation='softmax')])\n"
    )
    (tmp_path / "ftplib.py").write_text("raise AssertionError('a file beside the data was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    model = load_model("my_models:small")
    assert importlib.util.find_spec("ftplib").origin != str(tmp_path / "ftplib.py")
    assert model.compiled
    assert not model.jit_compile
    model.save(tmp_path / "small.keras")
    assert load_model(str(tmp_path / "small.keras")).count_params() == 8
    with pytest.raises(UnsupportedModelError, match=r"missing\.keras cannot be loaded"):
        load_model("missing.keras")
    with pytest.raises(UnsupportedModelError, match="my_models:large cannot be found"):
        load_model("my_models:large")


def test_a_report_compares_costs_and_peaks_and_lists_ten_nodes(tmp_path, monkeypatch, capsys):
    (tmp_path / "deep_models.py").write_text(
        "import keras\n"
        "def deep():\n"
        "    layers = [keras.layers.Dense(64, activation='relu') for _ in range(6)]\n"
        "    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(2, activation='softmax')])\n"
        "    model.compile('sgd', 'sparse_categorical_crossentropy', jit_compile=False)\n"
        "    return model\n"
    )
    monkeypatch.chdir(tmp_path)
    command = ["profile", "deep_models:deep", "--batch-size", "1024", "--budget", "80%", "--rounds", "1", "--json"]
    assert main([*command, "--time-limit", "5", "--cache", str(tmp_path / "c")]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["profile"]["num_measured"] == report["profile"]["num_signatures"] > 0
    assert [step["name"] for step in report["accuracy"]["steps"]] == ["in order", "budget 80%"]
    for step in report["accuracy"]["steps"]:
        assert step["predicted_s"] > 0
        # 1024 x 64 floats, 256 KiB, are the largest tensors.
        assert abs(step["predicted_peak_bytes"] - step["recorded_peak_bytes"]) <= 2 << 18
    assert len(report["nodes"]) == 10
    assert main([*command, "--time-limit", "5", "--cache", str(tmp_path / "c")]) == 0
    assert json.loads(capsys.readouterr().out)["profile"]["num_measured"] == 0
