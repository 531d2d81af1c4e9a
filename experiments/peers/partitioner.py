"""PyTorch's partitioner and `auto` on PyTorch's own joint graphs, at equal peak.

    pip install -e .[peers]    # PyTorch; its build for CPUs is enough
    python -m experiments.peers.partitioner [--model NAME ...] [--time-limit S]

For each budget and each solver that PyTorch has for its knapsack problem, the partition is simulated as a schedule, and
`auto` gets its peak as a budget: in fixed order, which is the order in which the partition first runs each operation,
and in free order. Both minimize the same costs: those of a roofline, or PyTorch's own count of operations, in which
all but products and convolutions is free, as its compiler fuses that. Partitions that are the same are one row.
"""

import argparse
import time
from collections.abc import Iterator
from functools import cache
from statistics import geometric_mean
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.solvers import solve
from experiments import running

RESULTS = running.RESULTS_FOLDER / "partitioner.csv"
_MODELS = ("resnet50", "mobilenetv2", "unet", "encoder", "decoder")
_BUDGETS = (0.2, 0.4, 0.6, 0.8)
_SOLVERS = ("dp", "greedy", "ilp")
_COSTS = ("roofline", "products")
_COLUMNS = (
    "model", "costs", "budgets", "nodes", "stock_peak_bytes", "peak_bytes", "saved_bytes", "overhead", "partition_s",
    "fixed_overhead", "fixed_status", "fixed_s", "fixed_saved_bytes", "free_overhead", "free_status", "free_s",
    "time_limit_s", "torch",
)  # fmt: skip
_LEAST = 1e-4  # overhead that is told apart from none


def compute(point: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a model and a kind of costs."""
    return list(_rows(point))


def _rows(point: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import torch

    from experiments.peers import joint_graph
    from experiments.peers.torch_models import make_step

    is_roofline = point["costs"] == "roofline"
    cost = cache(joint_graph.roofline_ns if is_roofline else joint_graph.count_operations)
    estimate = cost if is_roofline else None
    joint = joint_graph.trace(make_step(point["model"]))
    plain = [node.name for node in joint.module.graph.nodes if node.op == "call_function"]
    stock = joint_graph.convert(joint, plain, cost).graph
    stock_bytes = simulate_stock(stock).peak_bytes
    found: dict[joint_graph.Partition, tuple[list[str], float]] = {}
    for budget in _BUDGETS:
        for solver in _SOLVERS:
            started = time.perf_counter()
            one = joint_graph.partition(joint, budget, solver, estimate)
            seconds = time.perf_counter() - started
            found.setdefault(one, ([], seconds))[0].append(f"{budget} {solver}")
    for one, (budgets, seconds) in found.items():
        converted = joint_graph.convert(joint, joint_graph.order_of(one), cost)
        graph = converted.graph
        theirs = simulate(graph, joint_graph.schedule_of(converted, one))
        row = {
            "budgets": ", ".join(budgets),
            "nodes": len(graph.nodes),
            "stock_peak_bytes": stock_bytes,
            "peak_bytes": theirs.peak_bytes,
            "saved_bytes": joint_graph.saved_bytes(converted, one),
            "overhead": theirs.cost / graph.baseline_cost - 1,
            "partition_s": seconds,
            "time_limit_s": point["time_limit_s"],
            "torch": torch.__version__,
        }
        for order in ("fixed", "free"):
            solution = solve(graph, theirs.peak_bytes, order=order, time_limit_s=point["time_limit_s"])
            row[f"{order}_status"], row[f"{order}_s"] = solution.status.name, solution.solve_time_s
            if solution.schedule is not None:
                row[f"{order}_overhead"] = solution.scheduled.simulation.cost / graph.baseline_cost - 1
                if order == "fixed":
                    row["fixed_saved_bytes"] = joint_graph.held_bytes(converted, solution.schedule)
        yield row


def page() -> str:
    """The page of the results that are kept."""
    rows = running.read_rows(RESULTS)
    headers = ["model", "costs", "budget and solver", "peak, MiB", "of stock", "its overhead", "ours, fixed order"]
    headers += ["ours, free order", "ours over its", "kept after forward, MiB", "ours", "its s", "ours, s"]
    cells = []
    for row in rows:
        peak, stock = int(row["peak_bytes"]), int(row["stock_peak_bytes"])
        cells.append([
            row["model"], row["costs"], row["budgets"], f"{peak / 2**20:.1f}", f"{peak / stock:.0%}",
            f"{float(row['overhead']):.2%}", _percent(row["fixed_overhead"]), _percent(row["free_overhead"]),
            "" if (ratio := _ratio(row)) is None else f"{ratio:.2f}",
            f"{int(row['saved_bytes']) / 2**20:.1f}",
            f"{int(row['fixed_saved_bytes']) / 2**20:.1f}" if row["fixed_saved_bytes"] else "",
            f"{float(row['partition_s']):.1f}", f"{float(row['fixed_s']):.1f}",
        ])  # fmt: skip
    table = tabulate(cells, headers, tablefmt="pipe", disable_numparse=True, colalign=["left"] * 3 + ["right"] * 10)
    return _PAGE.format(table=table, summary=_summary(rows), origins=running.made_with(rows))


_PAGE = """# auto and PyTorch's partitioner, on PyTorch's joint graphs at equal peak

Written from `partitioner.csv`, which `python -m experiments.peers.partitioner` measures. Each row is one partition:
PyTorch's budgets and solvers that lead to it, its simulated peak of activations and gradients, and the cost of its
recomputations divided by the cost of one step. `auto` gets that peak as its budget, in the order in which the partition
first runs each operation, and in free order. With `roofline`, every operation has a cost, and both minimize it. With
`products`, everything except products and convolutions is free, as in PyTorch's own estimate. "Ours over its" compares
the time of a whole step: 1 plus our overhead in fixed order, divided by 1 plus PyTorch's. PyTorch's budget limits the
bytes that the forward part saves for the backward part. Two columns show these bytes for both; `auto` does not minimize
them.

{summary}

{table}

{origins}
"""


def _percent(text: str) -> str:
    return "none" if not text else f"{float(text):.2%}"


def _ratio(row: running.Row) -> float | None:
    if not row["fixed_overhead"]:
        return None
    return (1 + float(row["fixed_overhead"])) / (1 + float(row["overhead"]))


def _summary(rows: list[running.Row]) -> str:
    lines = []
    for costs in _COSTS:
        those = [row for row in rows if row["costs"] == costs and float(row["overhead"]) > 0]
        found = [(float(row["fixed_overhead"]), float(row["overhead"])) for row in those if row["fixed_overhead"]]
        if found:
            steps = geometric_mean((1 + mine) / (1 + its) for mine, its in found)
            overheads = geometric_mean(max(mine, _LEAST) / max(its, _LEAST) for mine, its in found)
            lines.append(
                f"- {costs}: {len(those)} partitions recompute something that has a cost. In fixed order, our step "
                f"takes {steps:.3f} times as long as PyTorch's in the geometric mean, and our overhead is "
                f"{overheads:.2f} of PyTorch's (a smaller one than {_LEAST:.2%} counts as that). PyTorch's overhead is "
                "the lower one in "
                f"{sum(its < mine - 1e-5 for mine, its in found)}, and `auto` found nothing in "
                f"{len(those) - len(found)}."
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=_MODELS, choices=_MODELS)
    parser.add_argument("--time-limit", type=float, default=10.0, help="of `auto`, in seconds, for each peak and order")
    options = parser.parse_args()
    points = [{"model": model, "costs": costs} for model in options.model for costs in _COSTS]
    running.run_apart(
        "experiments.peers.partitioner", points, RESULTS, _COLUMNS, settings={"time_limit_s": options.time_limit}
    )
    running.write_text(RESULTS.with_suffix(".md"), page())


if __name__ == "__main__":
    main()
