"""Runs the checks in turn until time is up or a signal, prints counts, and after each failure how to repeat it."""

import argparse
import csv
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from experiments.running import environment_cells
from tests.fuzz.arguments import check_core_arguments, check_model_arguments
from tests.fuzz.files import check_cache_file, check_graph_file, check_schedule_file
from tests.fuzz.outputs import check_output, check_threads
from tests.fuzz.solving import check_solver


def prepare_tensorflow() -> None:
    """Sets up TensorFlow, which is imported only where models are asked for."""
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # the allocator of the CPU counts memory only then
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def check_model(seed: int) -> str:
    """As `models.check_model`."""
    from tests.fuzz import models

    return models.check_model(seed)


_FAILED = "failed"
_PROGRESS_S = 20.0  # between lines that say how far it is

CHECKS: Mapping[str, Callable[[int], str]] = {
    "solver": check_solver,
    "graph_file": check_graph_file,
    "schedule_file": check_schedule_file,
    "cache_file": check_cache_file,
    "output": check_output,
    "threads": check_threads,
    "core_arguments": check_core_arguments,
    "model_arguments": check_model_arguments,
    "model": check_model,
}


def _interrupt(*_given: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """Returns 1 where there was a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="when to end (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="at most so many seeds for each check")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS), help="these checks alone")
    parser.add_argument("--csv", type=Path, help="add the counts to this file, with the commit and the versions")
    args = parser.parse_args()
    prepare_tensorflow()
    checks = {name: CHECKS[name] for name in args.only}
    environment = environment_cells() if args.csv else {}  # of the code as it is loaded
    counts: Counter[str] = Counter()
    slowest_s, seed, until = 0.0, args.seed, time.perf_counter() + args.seconds
    reported_s = time.perf_counter()
    # A shell starts what runs in its background with SIGINT ignored, and others end it by SIGTERM or SIGHUP.
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    with suppress(KeyboardInterrupt):
        print(f"seeds from {seed}: {', '.join(checks)}", file=sys.stderr, flush=True)
        while time.perf_counter() < until and (args.rounds is None or seed < args.seed + args.rounds):
            for name, check in checks.items():
                started_s = time.perf_counter()
                try:
                    counts[f"{name}: {check(seed)}"] += 1
                except Exception:
                    counts[f"{name}: {_FAILED}"] += 1
                    traceback.print_exc()
                    print(f"to repeat it: python -m tests.fuzz --only {name} --seed {seed} --rounds 1", file=sys.stderr)
                if time.perf_counter() > until:
                    break
                slowest_s = max(slowest_s, time.perf_counter() - started_s)
            seed += 1
            if time.perf_counter() > reported_s + _PROGRESS_S:
                reported_s = time.perf_counter()
                print(f"{sum(counts.values())} inputs, seeds {args.seed} to {seed - 1}", file=sys.stderr, flush=True)
    for what, count in sorted(counts.items()):
        print(f"{count:8d}  {what}")
    most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{sum(counts.values())} inputs, seeds {args.seed} to {seed - 1}")
    print(f"the slowest took {slowest_s:.1f} s, and the process {most_mib} MiB")
    if args.csv:
        _record(args.csv, counts, {"seeds": f"{args.seed} to {seed - 1}", **environment})
    return int(any(what.endswith(_FAILED) for what in counts))


def _record(path: Path, counts: Mapping[str, int], fixed: Mapping[str, str]) -> None:
    columns = ("check", "outcome", "count", "seeds", "commit", "machine", "versions")
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if is_new:
            writer.writeheader()
        for what, count in sorted(counts.items()):
            check, outcome = what.split(": ", 1)
            writer.writerow({"check": check, "outcome": outcome, "count": count, **fixed})


if __name__ == "__main__":
    sys.exit(main())
