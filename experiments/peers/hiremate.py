"""`auto` on the nine networks of the HiRemate paper (ICML 2025), as PyTorch's joint graphs, and on a deeper one.

    pip install -e .[peers]    # PyTorch; its build for CPUs is enough
    python -m experiments.peers.hiremate [--network NAME ...] [--time-limit S]

Budgets are shares of the peak of the plain step's activations and gradients. Costs are those of a roofline.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from tabulate import tabulate

from checkmate_tf.simulator import find_peak_bound, simulate_stock
from checkmate_tf.solvers.portfolio.minimum_memory import solve_budgets
from experiments import running

RESULTS = running.RESULTS_FOLDER / "hiremate.csv"
_NETWORKS = (
    "gpt2", "unet", "mlp_mixer", "regnet_x_32gf", "resnet101", "transformer", "fno", "u_fno", "uno",
    "transformer of 36 layers",
)  # fmt: skip
_BUDGETS_PERCENT = (50, 40, 30)
_COLUMNS = (
    "network", "nodes", "stock_peak_bytes", "least_step_bytes", "budget_percent", "overhead", "bound", "status",
    "seconds", "time_limit_s", "torch",
)  # fmt: skip
_LIMIT_PERCENT = 10  # of HiRemate's overhead, the lower end


def compute(point: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a network."""
    return list(_rows(point))


def _rows(point: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import torch

    from experiments.peers import joint_graph
    from experiments.peers.hiremate_networks import make_step

    joint = joint_graph.trace(make_step(point["network"]))
    plain = [node.name for node in joint.module.graph.nodes if node.op == "call_function"]
    graph = joint_graph.convert(joint, plain, joint_graph.roofline_ns).graph
    stock_bytes, least_bytes = simulate_stock(graph).peak_bytes, find_peak_bound(graph).peak_bytes
    budgets = [stock_bytes * percent // 100 for percent in _BUDGETS_PERCENT]
    solutions = solve_budgets(graph, budgets, time_limit_s=len(budgets) * point["time_limit_s"])
    for percent, solution in zip(_BUDGETS_PERCENT, solutions, strict=True):
        row = {"budget_percent": percent, "nodes": len(graph.nodes), "torch": torch.__version__}
        row |= {"stock_peak_bytes": stock_bytes, "least_step_bytes": least_bytes, "time_limit_s": point["time_limit_s"]}
        row |= {"status": solution.status.name, "seconds": solution.solve_time_s}
        row["bound"] = max(solution.cost_lower_bound / graph.baseline_cost - 1, 0.0)
        yield row if solution.simulation is None else {**row, "overhead": solution.simulation.overhead}


def table(rows: list[running.Row]) -> str:
    """A line a network: its size, and overhead, bound and time at each budget."""
    lines = []
    for name in _NETWORKS:
        those = [row for row in rows if row["network"] == name and row["nodes"]]
        if not those:
            continue
        first, gib = those[0], 2**30
        cells = [name, first["nodes"], f"{int(first['stock_peak_bytes']) / gib:.2f}"]
        cells.append(f"{int(first['least_step_bytes']) / int(first['stock_peak_bytes']):.0%}")
        for percent in _BUDGETS_PERCENT:
            row = next(row for row in those if int(row["budget_percent"]) == percent)
            found = f"{float(row['overhead']):.2%}" if row["overhead"] else row["status"].lower().replace("_", " ")
            cells += [found, f"{float(row['bound']):.2%}" if row["overhead"] else "", f"{float(row['seconds']):.0f}"]
        lines.append(cells)
    headers = ["network", "nodes", "stock peak, GiB", "least step"]
    for percent in _BUDGETS_PERCENT:
        headers += [f"overhead at {percent}%", "at least", "s"]
    return tabulate(lines, headers, tablefmt="pipe", disable_numparse=True, colalign=["left"] + ["right"] * 12)


def page() -> str:
    """The page of the results that are kept."""
    rows = running.read_rows(RESULTS)
    nine = [row for row in rows if row["network"] in _NETWORKS[:9] and row["nodes"]]
    counts = []
    for percent in _BUDGETS_PERCENT:
        here = [float(row["overhead"]) for row in nine if int(row["budget_percent"]) == percent and row["overhead"]]
        within = sum(100 * overhead <= _LIMIT_PERCENT for overhead in here)
        counts.append(f"at {percent} %, {len(here)} networks have a schedule and {within} of them cost at most 10 %")
    return _PAGE.format(counts="; ".join(counts), table=table(rows), origins=running.made_with(rows))


_PAGE = """# auto on the networks of HiRemate

Written from `hiremate.csv`, which `python -m experiments.peers.hiremate` measures. The networks are those of HiRemate
(Gusak et al., ICML 2025) in the sizes of its authors' repository. They are written anew from the public definitions,
without dropout. A graph is PyTorch's joint graph of forward and backward, and its costs are those of a GPU's roofline.
Peaks are simulated and cover activations and gradients, without parameters and batch.

We have no table of HiRemate's overheads by network. Its abstract states 50 to 70 % less memory for 10 to 15 % of
overhead, measured on GPUs, and a review states that scheduling a transformer of 2,500 nodes took 2.5 hours. Budgets
here are therefore 50, 40 and 30 % of the stock step's peak, and no row compares measured times. "Least step" is the
share of that peak that one operation needs; no schedule has a lower peak. "At least" is a proved bound in fixed order.
The budgets of a network are solved together, so a schedule for one also serves those above it.

Of the nine networks: {counts}.

{table}

{origins}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="*", default=_NETWORKS, choices=_NETWORKS)
    parser.add_argument(
        "--time-limit", type=float, default=10.0, help="seconds a budget, all of a network solved together"
    )
    options = parser.parse_args()
    points = [{"network": name} for name in options.network]
    running.run_apart(
        "experiments.peers.hiremate", points, RESULTS, _COLUMNS, settings={"time_limit_s": options.time_limit}
    )
    running.write_text(RESULTS.with_suffix(".md"), page())


if __name__ == "__main__":
    main()
