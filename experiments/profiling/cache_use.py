"""The cache at work on real profiles: a second run, a run killed and resumed, two runs at once, a truncated file.

    python -m experiments.profiling.cache_use [--parts second killed together truncated] [--model resnet50] ...

"second" reports how long profiling a model takes from nothing; run it on a quiet machine.
"""

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.profiling.accuracy import BATCH_SIZES
from experiments.running import RESULTS_FOLDER, Point, Row, run_apart

RESULTS = RESULTS_FOLDER / "profiling_cache.csv"
COLUMNS = (
    "part", "model", "batch_size", "run", "num_ops", "num_nodes", "num_signatures", "num_measured",
    "num_not_measurable", "seconds", "in_cache", "warning", "seed",
)  # fmt: skip
_KILL_AFTER = 20


def points(parts: Sequence[str], model: str, batch_size: int) -> list[Point]:
    return [{"part": part, "model": model, "batch_size": batch_size} for part in parts]


def compute(point: Point) -> list[dict[str, Any]]:
    """A row for each run of a part."""
    with tempfile.TemporaryDirectory() as folder:
        rows = PARTS[point["part"]]({**point, "cache": str(Path(folder) / "profiles.sqlite")})
    return [{**row, "seed": 0} for row in rows]


def profiled(point: Point) -> dict[str, Any]:
    """Profiles a model in this process."""
    from checkmate_tf.profiling.profiler import profile_graph
    from checkmate_tf.training.traced_model import trace_model
    from experiments.profiling.models import MODELS

    training_graph = trace_model(MODELS[point["model"]](), batch_size=point["batch_size"]).extract()
    profile = profile_graph(training_graph, cache_path=Path(point["cache"]))
    return {
        "num_ops": len(training_graph.ops.ops),
        "num_nodes": len(training_graph.graph.nodes),
        "num_signatures": profile.num_signatures,
        "num_measured": profile.num_measured,
        "num_not_measurable": len(profile.reasons),
        "seconds": profile.took_s,
    }


def second(point: Point) -> list[dict[str, Any]]:
    """Twice, each time in a process of its own."""
    return [{"run": name, **_finished(_worker(point))} for name in ("first", "second")]


def killed(point: Point) -> list[dict[str, Any]]:
    """Killed with SIGKILL after some measurements, then run again."""
    worker = _worker(point)
    while _rows(point) < _KILL_AFTER:
        assert worker.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    kept = _rows(point)
    again = _finished(_worker(point))
    assert again["num_measured"] == again["num_signatures"] - kept
    return [{"run": "killed", "in_cache": kept}, {"run": "resumed", **again, "in_cache": _rows(point)}]


def together(point: Point) -> list[dict[str, Any]]:
    """Two processes with one cache: what both measured adds up to every signature once."""
    workers = [_worker(point) for _ in range(2)]
    found = [_finished(worker) for worker in workers]
    assert sum(run["num_measured"] for run in found) == found[0]["num_signatures"] == _rows(point)
    return [{"run": name, **run, "in_cache": _rows(point)} for name, run in zip(("one", "other"), found, strict=True)]


def truncated(point: Point) -> list[dict[str, Any]]:
    """Half of the file is cut off: a warning, the rest set aside, and every signature measured again."""
    profiled(point)
    cache = Path(point["cache"])
    cache.write_bytes(cache.read_bytes()[: cache.stat().st_size // 2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = profiled(point)
    messages = [str(warning.message) for warning in caught if "was renamed" in str(warning.message)]
    assert len(messages) == 1
    assert again["num_measured"] == again["num_signatures"]
    return [{"run": "after", **again, "warning": messages[0].replace(str(cache.parent), "")}]


PARTS = {"second": second, "killed": killed, "together": together, "truncated": truncated}


def _worker(point: Point) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.running", "experiments.profiling.cache_use:profiled"]
    return subprocess.Popen([*command, json.dumps(point)], stdout=subprocess.PIPE, text=True)


def _finished(worker: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = worker.communicate()
    assert worker.returncode == 0
    return json.loads(output.splitlines()[-1])


def _rows(point: Point) -> int:
    try:
        with sqlite3.connect(f"file:{point['cache']}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT COUNT(*) FROM measurements").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def table(rows: Sequence[Row]) -> str:
    """A line a run."""
    from tabulate import tabulate

    columns = ("part", "model", "batch_size", "run", "num_signatures", "num_measured", "seconds", "in_cache", "error")
    shown = [{**row, "seconds": f"{float(row['seconds']):.1f}" if row["seconds"] else ""} for row in rows]
    headers = [column.removeprefix("num_").replace("_", " ") for column in columns]
    lines = [[row[column] for column in columns] for row in shown]
    return tabulate(lines, headers, tablefmt="github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", choices=BATCH_SIZES, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    wanted = points(args.parts, args.model, args.batch_size)
    print(table(run_apart("experiments.profiling.cache_use", wanted, args.output, COLUMNS)))


if __name__ == "__main__":
    main()
