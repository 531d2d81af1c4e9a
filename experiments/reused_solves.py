"""What solving ten budgets together saves: as `pareto` solves them, passing schedules and bounds on, and each alone.

    python -m experiments.reused_solves [--model NAME ...] [--output FILE.csv]

The models are those of `planning_seconds`, with measured costs. Budgets lie at equal distances between the least memory
found and the stock step's. Both ways get the same time for all of them together. A row is a budget.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from experiments.planning_seconds import MODELS, build
from experiments.running import RESULTS_FOLDER, Point, run_apart

COLUMNS = (
    "model", "budget_bytes", "together_overhead", "together_bound", "together_s", "alone_overhead", "alone_bound",
    "alone_s",
)  # fmt: skip
_NUM_BUDGETS = 10
_TIME_LIMIT_S = 60.0
_TOLERANCE = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=["resnet50"], choices=MODELS)
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "reused_solves.csv")
    options = parser.parse_args()
    run_apart("experiments.reused_solves", [{"model": name} for name in options.model], options.output, COLUMNS)


def compute(point: Point) -> list[dict[str, Any]]:
    """The rows of a model, a budget each."""
    import checkmate_tf
    from checkmate_tf.simulator import simulate_stock
    from checkmate_tf.solvers import solve
    from checkmate_tf.solvers.portfolio.auto import Auto
    from checkmate_tf.solvers.portfolio.minimum_memory import minimum_memory, solve_budgets

    model, batch = build(point["model"])
    graph = checkmate_tf.rematerialize(model, data=batch, budget="90%", measure=False, progress=False).graph
    least, most = minimum_memory(graph), simulate_stock(graph).peak_bytes
    step = (most - least.budget_bytes) / (_NUM_BUDGETS - 1)
    budgets = [int(most - number * step) for number in range(_NUM_BUDGETS)]
    solver = Auto(tolerance=_TOLERANCE)
    ended = [time.perf_counter()]
    together = solve_budgets(
        graph,
        budgets,
        time_limit_s=_TIME_LIMIT_S,
        solver=solver,
        known=least.solution,
        on_solved=lambda budget, solution: ended.append(time.perf_counter()),
    )
    rows = []
    for number, (budget, found) in enumerate(zip(budgets, together, strict=True)):
        began = time.perf_counter()
        alone = solve(graph, budget, solver=solver, time_limit_s=_TIME_LIMIT_S / _NUM_BUDGETS)
        rows.append(
            {
                "budget_bytes": budget,
                "together_overhead": None if found.best is None else found.best.simulation.overhead,
                "together_bound": found.cost_lower_bound / graph.baseline_cost - 1,
                "together_s": ended[number + 1] - ended[number],
                "alone_overhead": None if alone.best is None else alone.best.simulation.overhead,
                "alone_bound": alone.cost_lower_bound / graph.baseline_cost - 1,
                "alone_s": time.perf_counter() - began,
            }
        )
    return rows


if __name__ == "__main__":
    main()
