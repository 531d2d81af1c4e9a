"""The choices within MOCCASIN, measured: what to start from, how to write precedence, C_v, neighbourhoods or not.

The study "nothing" is the paper's method as `Moccasin.paper()` has it, which begins with no schedule.

python -m experiments.moccasin.choices [--time-limit 30] [--study nothing|start|precedence|strategy|limit]
"""

import argparse
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from checkmate_tf.solvers.moccasin.solver import Moccasin
from experiments.moccasin.page import write_page
from experiments.moccasin.points import compute, is_here, point
from experiments.running import RESULTS_FOLDER, Runner, run_points

WHOLE: dict[str, Any] = {"strategy": "whole"}
PAPER = {name: value for name, value in vars(Moccasin.paper()).items() if value != getattr(Moccasin, name)}
# study -> (graphs and percents, label -> options)
STUDIES: dict[str, tuple[list[tuple[str, int]], dict[str, dict[str, Any]]]] = {
    "nothing": (
        [
            ("vgg16-b256-train", 90),
            ("fcn8-b32-train", 90),
            ("fcn8-b32-train", 80),
            ("rl-g1-n100", 90),
            ("rl-g2-n250", 90),
            ("resnet50-b256-train", 90),
        ],
        {"reservoir": PAPER, "cover": {**PAPER, "precedence": "cover"}},
    ),
    "start": (
        [("fcn8-b32-train", 80), ("rl-g1-n100", 80), ("L100", 80), ("rl-g2-n250", 90), ("resnet50-b256-train", 80)],
        {
            "two phases": {"start": "two_phases"},
            "stage_annealing": {},
            "checkmate_lp": {"start": "checkmate_lp"},
            "twremat": {"start": "twremat"},
        },
    ),
    "precedence": (
        [("fcn8-b32-train", 80), ("L50", 80), ("rl-g1-n100", 90), ("L100", 80)],
        {
            "cover": {**WHOLE, "start": "two_phases"},
            "reservoir": {**WHOLE, "start": "two_phases", "precedence": "reservoir"},
        },
    ),
    "strategy": (
        [("rl-g1-n100", 80), ("L100", 80), ("L250", 80)],
        {"neighbourhoods": {"start": "twremat"}, "whole": {**WHOLE, "start": "twremat"}},
    ),
    "limit": (
        [("fcn8-b32-train", 80), ("L50", 80), ("L50", 70), ("rl-g1-n100", 90), ("rl-g1-n100", 80)],
        {f"C_v {limit}": {**WHOLE, "max_computations": limit} for limit in (2, 3, 4)},
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each solve")
    parser.add_argument("--study", nargs="*", choices=list(STUDIES), default=list(STUDIES))
    options = parser.parse_args(arguments)
    for study in options.study:
        cases, labels = STUDIES[study]
        cases = [case for case in cases if is_here(case[0])]
        points = [point(*case, options.time_limit, **chosen) for case in cases for chosen in labels.values()]
        done = run_points(points, compute, RESULTS_FOLDER / "moccasin.jsonl", part=study, runner=Runner(1))
        results = [entry["result"] for entry in done]
        rows = []
        for index, case in enumerate(cases):
            here = results[index * len(labels) : (index + 1) * len(labels)]
            rows.append((*case, *(_cell(result) for result in here)))
        print(f"\n{study}: overhead %, bound %, seconds to the best, {options.time_limit:g} s each")
        print(tabulate(rows, ("graph", "budget %", *labels)))
    write_page()


def _cell(result: dict[str, Any]) -> str:
    if result["overhead"] is None:
        return f"none, {result['status'].lower()}"
    proved = "=" if result["status"] == "OPTIMAL" else ""
    return f"{proved}{result['overhead']:.3f} ({result['bound']:.3f}) {result['time_to_best_s']:.1f}"


if __name__ == "__main__":
    main()
