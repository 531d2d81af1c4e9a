"""Training on several replicas: `fit` with MirroredStrategy, a custom loop with MultiWorkerMirroredStrategy."""

import json
import socket
import subprocess
import sys
from typing import Any

import pytest

from tests.programs import WITHOUT_OPTIONAL


@pytest.fixture(scope="module")
def mirrored() -> dict[str, Any]:
    return _results([subprocess.Popen(_command("mirrored"), stdout=subprocess.PIPE, text=True)])[0]


def test_mirrored_fit_equals_stock(mirrored: dict[str, Any], record_property: Any) -> None:
    record_property("difference", max(mirrored["difference"], mirrored["history"]))
    assert mirrored["difference"] <= 1e-5
    assert mirrored["history"] <= 1e-5
    assert mirrored["replicas_own_statistics"] > 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("synchronized BatchNorm", "joins its replicas"),
        ("own train_step", "has a train_step of its own"),
        ("XLA", "compile it with jit_compile=False"),
        ("odd batch", "use a multiple of 2"),
    ],
)
def test_mirrored_refusals(mirrored: dict[str, Any], what: str, message: str) -> None:
    assert message in mirrored["refused"][what]


def test_tensorflow_itself_refuses_xla_on_two_devices(mirrored: dict[str, Any]) -> None:
    assert "located in device" in mirrored["tensorflow_refuses_xla"]


def test_two_workers_with_a_custom_loop(record_property: Any) -> None:
    ports = [str(_free_port()) for _ in range(2)]
    workers = [
        subprocess.Popen(_command("worker", *ports, str(number)), stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    first, second = _results(workers)
    record_property("difference", max(first["difference"], second["difference"]))
    for result in (first, second):
        assert result["replicas"] == 2
        assert result["difference"] <= 1e-5
        assert result["losses"] <= 1e-5
    assert first["weights"] == second["weights"]


def _command(module: str, *arguments: str) -> list[str]:
    run = f"import runpy; runpy.run_module('experiments.keras_users.{module}', run_name='__main__')"
    return [sys.executable, "-c", WITHOUT_OPTIONAL + run, *arguments]


def _results(processes: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """The last line of each process, as JSON."""
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes)
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
