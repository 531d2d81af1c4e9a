"""Runs the checks in turn until time is up, and prints counts; ends at the first failure with how to repeat it."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping

from tests.fuzz.files import check_graph_file, check_schedule_file
from tests.fuzz.solving import check_solver

CHECKS: Mapping[str, Callable[[int], str]] = {
    "solver": check_solver,
    "graph_file": check_graph_file,
    "schedule_file": check_schedule_file,
}


def main() -> int:
    """Returns 1 after a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="when to end (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="at most so many seeds for each check")
    parser.add_argument("--only", choices=CHECKS, help="one check alone")
    args = parser.parse_args()
    checks = {args.only: CHECKS[args.only]} if args.only else CHECKS
    counts: Counter[str] = Counter()
    slowest_s, seed, until = 0.0, args.seed, time.perf_counter() + args.seconds
    while time.perf_counter() < until and (args.rounds is None or seed < args.seed + args.rounds):
        for name, check in checks.items():
            started_s = time.perf_counter()
            try:
                counts[f"{name}: {check(seed)}"] += 1
            except Exception:
                traceback.print_exc()
                print(f"{sum(counts.values())} inputs were right before this one; to repeat it:", file=sys.stderr)
                print(f"python -m tests.fuzz --only {name} --seed {seed} --rounds 1", file=sys.stderr)
                return 1
            slowest_s = max(slowest_s, time.perf_counter() - started_s)
        seed += 1
    for what, count in sorted(counts.items()):
        print(f"{count:8d}  {what}")
    print(f"{sum(counts.values())} inputs, seeds {args.seed} to {seed - 1}; the slowest took {slowest_s:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
