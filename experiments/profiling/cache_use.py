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
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from checkmate_tf.profiling.profiler import profile_graph
from checkmate_tf.training.model_step import trace_model_step
from experiments.profiling.accuracy import save
from experiments.profiling.models import MODELS

RESULTS = Path("experiments/results/profiling")
_KILL_AFTER = 20


def main() -> None:
    parts = {"second": second, "killed": killed, "together": together, "truncated": truncated}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--worker", metavar="CACHE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(profiled(args, Path(args.worker))))
        return
    for name in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            found = parts[name](args, Path(folder) / "profiles.sqlite")
        RESULTS.mkdir(parents=True, exist_ok=True)
        save(
            RESULTS / f"cache_{name}_{args.model}.json",
            {"model": args.model, "batch_size": args.batch_size, **found},
        )


def profiled(args: argparse.Namespace, cache: Path) -> dict[str, Any]:
    step = trace_model_step(MODELS[args.model](), args.batch_size)
    profile = profile_graph(step.training_graph, cache_path=cache)
    return {
        "num_ops": len(step.training_graph.ops.ops),
        "num_nodes": len(step.training_graph.graph.nodes),
        "num_signatures": profile.num_signatures,
        "num_measured": profile.num_measured,
        "num_not_measurable": len(profile.reasons),
        "seconds": profile.seconds,
    }


def second(args: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Twice, each time in a process of its own."""
    return {"first": _finished(_worker(args, cache)), "second": _finished(_worker(args, cache))}


def killed(args: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Killed with SIGKILL after some measurements, then run again."""
    worker = _worker(args, cache)
    while _rows(cache) < _KILL_AFTER:
        assert worker.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    kept = _rows(cache)
    again = _finished(_worker(args, cache))
    assert again["num_measured"] == again["num_signatures"] - kept
    return {"kept_by_the_killed_run": kept, "resumed": again, "in_cache_at_the_end": _rows(cache)}


def together(args: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Two processes with one cache: what both measured adds up to every signature once."""
    workers = [_worker(args, cache) for _ in range(2)]
    found = [_finished(worker) for worker in workers]
    assert sum(run["num_measured"] for run in found) == found[0]["num_signatures"] == _rows(cache)
    return {"runs": found, "in_cache_at_the_end": _rows(cache)}


def truncated(args: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Half of the file is cut off: a warning, the rest set aside, and every signature measured again."""
    profiled(args, cache)
    cache.write_bytes(cache.read_bytes()[: cache.stat().st_size // 2])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = profiled(args, cache)
    messages = [str(warning.message) for warning in caught if "was renamed" in str(warning.message)]
    assert len(messages) == 1
    assert again["num_measured"] == again["num_signatures"]
    return {"warning": messages[0].replace(str(cache.parent), ""), "after": again}


def _worker(args: argparse.Namespace, cache: Path) -> subprocess.Popen[str]:
    options = ["--model", args.model, "--batch-size", str(args.batch_size), "--worker", str(cache)]
    command = [sys.executable, "-m", "experiments.profiling.cache_use", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _finished(worker: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = worker.communicate()
    assert worker.returncode == 0
    return json.loads(output.splitlines()[-1])


def _rows(cache: Path) -> int:
    try:
        with sqlite3.connect(f"file:{cache}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT COUNT(*) FROM measurements").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


if __name__ == "__main__":
    main()
