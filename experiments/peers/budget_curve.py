"""Peak by budget: PyTorch's partitioner, whose peak can rise as its budget falls, and `solve_budgets`.

    pip install -e .[peers]    # PyTorch; its build for CPUs is enough
    python -m experiments.peers.budget_curve [--time-limit S]

The graph is the joint graph of a decoder in the style of Llama, as in pytorch/pytorch#197838. PyTorch's budget is a
share of the bytes that the forward part keeps, ours a share of the peak. Peaks are simulated.
"""

import argparse
from itertools import pairwise
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from checkmate_tf.solvers.portfolio.minimum_memory import solve_budgets
from experiments import running

RESULTS = running.RESULTS_FOLDER / "budget_curve.csv"
_BUDGETS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_COLUMNS = (
    "model", "budget", "nodes", "stock_peak_bytes", "least_step_bytes", "saved_bytes", "its_peak_bytes", "its_overhead",
    "peak_bytes", "overhead", "time_limit_s", "torch",
)  # fmt: skip


def compute(point: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each budget."""
    import torch

    from experiments.peers import joint_graph
    from experiments.peers.torch_models import make_step

    joint = joint_graph.trace(make_step(point["model"]))
    plain = [node.name for node in joint.module.graph.nodes if node.op == "call_function"]
    graph = joint_graph.convert(joint, plain, joint_graph.roofline_ns).graph
    stock_bytes, least_bytes = simulate_stock(graph).peak_bytes, find_peak_bound(graph).peak_bytes
    budgets = [int(share * stock_bytes) for share in _BUDGETS]
    solutions = solve_budgets(graph, budgets, time_limit_s=point["time_limit_s"])
    rows = []
    for share, solution in zip(_BUDGETS, solutions, strict=True):
        found = joint_graph.partition(joint, share, "dp", joint_graph.roofline_ns)
        converted = joint_graph.convert(joint, joint_graph.order_of(found), joint_graph.roofline_ns)
        theirs = simulate(converted.graph, joint_graph.schedule_of(converted, found))
        row = {
            "budget": share,
            "nodes": len(graph.nodes),
            "stock_peak_bytes": stock_bytes,
            "least_step_bytes": least_bytes,
            "saved_bytes": joint_graph.saved_bytes(converted, found),
            "its_peak_bytes": theirs.peak_bytes,
            "its_overhead": theirs.overhead,
            "time_limit_s": point["time_limit_s"],
            "torch": torch.__version__,
        }
        if solution.simulation is not None:
            row |= {"peak_bytes": solution.simulation.peak_bytes, "overhead": solution.simulation.overhead}
        rows.append(row)
    return rows


def page() -> str:
    """The page of the results that are kept."""
    rows = running.read_rows(RESULTS)
    headers = ["budget", "its kept bytes, MiB", "its peak, MiB", "of stock", "its overhead"]
    headers += ["our peak, MiB", "of stock", "our overhead"]
    cells = []
    for row in rows:
        stock = int(row["stock_peak_bytes"])
        its, ours = int(row["its_peak_bytes"]), int(row["peak_bytes"] or 0)
        line = [row["budget"], f"{int(row['saved_bytes']) / 2**20:.1f}", f"{its / 2**20:.1f}", f"{its / stock:.0%}"]
        line.append(f"{float(row['its_overhead']):.2%}")
        mine = [f"{ours / 2**20:.1f}", f"{ours / stock:.0%}", f"{float(row['overhead']):.2%}"] if ours else ["none"]
        cells.append(line + mine)
    table = tabulate(cells, headers, tablefmt="pipe", disable_numparse=True, colalign=["right"] * 8)
    its, ours = (count_rises([int(row[key]) for row in rows if row[key]]) for key in ("its_peak_bytes", "peak_bytes"))
    first = rows[0]
    share = int(first["least_step_bytes"]) / int(first["stock_peak_bytes"])
    return _PAGE.format(
        nodes=first["nodes"], share=f"{share:.0%}", its=its, ours=ours, table=table, origins=running.made_with(rows)
    )


def count_rises(peaks: list[int]) -> int:
    """Returns how often a peak is above that of the next larger budget, of peaks by growing budget."""
    return sum(lower > higher for lower, higher in pairwise(peaks))


_PAGE = """# Peak by budget, compared with PyTorch's activation memory budget

Written from `budget_curve.csv`, which `python -m experiments.peers.budget_curve` measures. The graph is PyTorch's joint
graph of a small decoder in the style of Llama, of {nodes} operations. In pytorch/pytorch#197838, the peak of such a
model, measured on a GPU, was 1,145 MB at a budget of 0.05, 508 MB at 0.1 and 275 MB at 0.15: less budget, more memory.

PyTorch's budget is a share of the bytes that the forward part saves for the backward part, and ours is a share of the
stock step's peak. A line of the table therefore does not compare overheads at equal memory;
[partitioner.md](partitioner.md) does. Peaks are simulated and cover activations and gradients. Overheads are by the
costs of a roofline. One operation alone needs {share} of the stock step's peak, so no schedule has a lower one.

As the budget falls, PyTorch's peak rises {its} times and ours {ours} times.

{table}

{origins}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0, help="of all budgets together, in seconds")
    options = parser.parse_args()
    running.run_apart(
        "experiments.peers.budget_curve", [{"model": "llama"}], RESULTS, _COLUMNS,
        settings={"time_limit_s": options.time_limit},
    )  # fmt: skip
    running.write_text(RESULTS.with_suffix(".md"), page())


if __name__ == "__main__":
    main()
