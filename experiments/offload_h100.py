"""Overhead by budget with an H100's figures: recomputation alone, offloading alone, and both.

    python -m experiments.offload_h100 [--model resnet50 ...] [--rate 50 450] [--time-limit 30]

Graphs are op-level and traced without running them. A node costs its time on a roofline of the H100; a copy costs its
bytes at a rate each way, and 10 us more. The rate of 50 GB/s is that of an H100's PCIe bus in practice; 450 GB/s is the
maker's figure for each way of a GH200, whose GPU is an H100. Budgets are shares of the stock step's memory beside
resident bytes.
"recompute" is `auto` on the graph without transfers, "offload" its stock order with values offloaded, and "both" `auto`
on the graph with transfers.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments.running import RESULTS_FOLDER, Point, Row, read_rows, run_apart

RESULTS = RESULTS_FOLDER / "offload_h100.csv"
WAYS = ("recompute", "offload", "both")
SHARES = (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05)
COLUMNS = (
    "model", "gbytes_per_s", "way", "share", "time_limit_s", "stock_bytes", "budget_bytes", "peak_bytes", "overhead",
    "bound", "recomputed", "offloaded", "offloaded_bytes", "hidden_share",
)  # fmt: skip
_BATCH_SIZES = {"resnet50": 256, "unet": 16, "gpt2": 8, "llama": 4}
MODELS = tuple(_BATCH_SIZES)
RATES = (50, 450)  # gigabytes in a second
_LATENCY_NS = 10_000
_LEAST_BYTES = 1 << 20


def points(models: Sequence[str], rates: Sequence[int], time_limit_s: float) -> list[Point]:
    """One for each row. Recomputation does not depend on the rate."""
    return [
        {"model": model, "gbytes_per_s": rate, "way": way, "share": share, "time_limit_s": time_limit_s}
        for model in models
        for rate in rates
        for way in WAYS
        if way != "recompute" or rate == RATES[0]
        for share in SHARES
    ]


def compute(point: Point) -> dict[str, Any]:
    """Solves for one budget in one way; a row without an overhead where nothing is found."""
    from checkmate_tf.errors import CheckmateError
    from checkmate_tf.simulator import make_retain_all_schedule, simulate, simulate_stock, time_schedule
    from checkmate_tf.solvers import solve
    from checkmate_tf.solvers.offloading.transfers import offload_to_fit

    graph = make_graph(point["model"], point["gbytes_per_s"])
    stock_bytes = simulate_stock(graph).peak_bytes
    budget_bytes = graph.resident_bytes + int(point["share"] * (stock_bytes - graph.resident_bytes))
    row = {"stock_bytes": stock_bytes, "budget_bytes": budget_bytes}
    if point["way"] == "offload":
        schedule, bound = offload_to_fit(graph, make_retain_all_schedule(graph), budget_bytes), None
    else:
        asked = graph if point["way"] == "both" else drop_transfers(graph)
        try:
            solution = solve(asked, budget_bytes, time_limit_s=point["time_limit_s"])
        except CheckmateError:
            return row
        schedule, bound = solution.schedule, solution.cost_lower_bound
    if schedule is None:
        return row
    simulation, timing = simulate(graph, schedule), time_schedule(graph, schedule)
    fetched = {value for _, value in schedule.fetches}
    return row | {
        "peak_bytes": simulation.peak_bytes,
        "overhead": simulation.cost / graph.baseline_cost - 1,
        "bound": None if bound is None else bound / graph.baseline_cost - 1,
        "recomputed": len(schedule.order) - len(graph.nodes),
        "offloaded": len(fetched),
        "offloaded_bytes": sum(graph.values[value].size_bytes for value in fetched),
        "hidden_share": timing.hidden_share if fetched else None,
    }


def drop_transfers(graph: Any) -> Any:
    values = tuple(replace(value, offload_cost=None, fetch_cost=None) for value in graph.values)
    return replace(graph, values=values)


def make_graph(name: str, gbytes_per_s: int) -> Any:
    """The graph of one training step, with an H100's costs of nodes, and of copies at a rate."""
    import keras

    from checkmate_tf.profiling.costs import make_cost_model
    from experiments.op_graphs import op_graph

    keras.utils.clear_session()
    graph = op_graph(
        make_model(name), batch_size=_BATCH_SIZES[name], name=name, costs=make_cost_model("h100", compiled=False)
    )

    def add_costs(value: Any) -> Any:
        if value.size_bytes < _LEAST_BYTES:
            return value
        cost_ns = _LATENCY_NS + round(value.size_bytes / gbytes_per_s)
        return replace(value, offload_cost=cost_ns, fetch_cost=cost_ns)

    return replace(graph, values=tuple(map(add_costs, graph.values)))


def make_model(name: str) -> Any:
    import keras

    from experiments.fastsa.networks import NETWORKS, text_classifier
    from experiments.models import apply_unet, resnet50

    if name == "resnet50":
        return resnet50()
    if name == "gpt2":
        return NETWORKS["gpt2"].make()
    if name == "llama":
        heads = {"num_query_heads": 16, "num_key_value_heads": 16, "intermediate_dim": 2752}
        return text_classifier("Llama", 2048, num_layers=8, hidden_dim=1024, vocabulary_size=32_000, **heads)
    inputs = keras.Input((256, 256, 3))
    return keras.Model(inputs, keras.layers.Conv2D(2, 1)(apply_unet(inputs, (64, 128, 256, 512), 1024)))


def table(rows: Sequence[Row]) -> str:
    """Overheads of each model and budget, one row each."""
    lines = [
        "| model | budget | recomputation | its bound "
        + "".join(f"| offloading, {rate} GB/s | both | hidden in both " for rate in RATES)
        + "|",
        "|---|---|---|---|" + "---|---|---|" * len(RATES),
    ]
    found = {(row["model"], float(row["share"]), row["way"], int(row["gbytes_per_s"])): row for row in rows}
    for model in MODELS:
        for share in SHARES:
            recompute = found.get((model, share, "recompute", RATES[0]))
            if recompute is None:
                continue
            cells = [model, f"{share:.0%}", _format(recompute), _percent(recompute["bound"])]
            for rate in RATES:
                offload, both = (found.get((model, share, way, rate)) for way in WAYS[1:])
                cells += ["" if row is None else _format(row) for row in (offload, both)]
                cells.append(f"{float(both['hidden_share']):.0%}" if both and both["hidden_share"] else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section() -> list[str]:
    """Returns lines of the page on offloading."""
    rows = read_rows(RESULTS)
    if not rows:
        return []
    limit_s = {row["time_limit_s"] for row in rows}
    batches = ", ".join(f"{model} {size}" for model, size in _BATCH_SIZES.items())
    return [
        "## With an H100's figures",
        "",
        "`python -m experiments.offload_h100`, kept in `offload_h100.csv`",
        "",
        "These are predicted overheads of op-level graphs; nothing ran. A node costs its time on a roofline of "
        "the H100, and a copy 10 µs plus its bytes at a rate each way: at 50 GB/s, which the PCIe bus of an H100 "
        "reaches, and at 450 GB/s, as NVIDIA states for a GH200. Budgets are shares of the stock step's memory "
        f"beside weights and batch (batch sizes: {batches}). A solver had {' or '.join(sorted(limit_s))} s for each "
        "budget. A dash "
        "means that no schedule was found.",
        "",
        table(rows),
        "",
    ]


def _format(row: Row) -> str:
    return row["error"].replace("|", "/") if row["error"] else _percent(row["overhead"]) or "-"


def _percent(cell: str) -> str:
    return f"{100 * float(cell):.1f} %" if cell else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rate", nargs="+", type=int, choices=RATES, default=RATES, help="of copies, in GB/s")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of a solver for each budget")
    options = parser.parse_args()
    run_apart("experiments.offload_h100", points(options.model, options.rate, options.time_limit), RESULTS, COLUMNS)


if __name__ == "__main__":
    main()
