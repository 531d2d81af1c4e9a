"""Checkmate, appendix A and section 4.6: the integrality gap with and without frontier-advancing stages.

An 8-layer linear network (n = 17) of unit cost and memory, budget 4. Published: gaps 21.56 (unpartitioned) and 1.18
(partitioned); 9.4 hours against 0.23 s to solve. The published gaps come out for gradient nodes that read the layer's
output and the incoming gradient; the other two mirrored forms are shown beside it.

    python -m experiments.checkmate.integrality [--time-limit 60]
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.model import StageModel, build_model
from checkmate_tf.solvers.checkmate.rows import Formulation
from checkmate_tf.solvers.checkmate.stage_space import full_space, unpartitioned_space
from experiments.checkmate.page import write_page
from experiments.running import CHECKMATE, RESULTS_FOLDER, Point, add_options, in_order, run_points, runner_of

NUM_LAYERS = 8
BUDGET = 4
READS = ("output, gradient", "input, gradient", "input, output, gradient")
FORMS = ("unpartitioned", "partitioned", "partitioned, tight rows")


def linear_network(num_layers: int, reads: str) -> Graph:
    """Unit layers, a loss, and gradient nodes that read the gradient after them and what else `reads` names."""
    nodes = [Node(f"layer{i}", "layer", (i - 1,) if i else (), (i,), 1) for i in range(num_layers)]
    nodes.append(Node("loss", "loss", (num_layers - 1,), (num_layers,), 1))
    for i in reversed(range(num_layers)):
        read = {len(nodes) - 1} | ({i} if "output" in reads else set()) | ({i - 1} if "input" in reads and i else set())
        nodes.append(Node(f"gradient{i}", "gradient", tuple(sorted(read)), (len(nodes),), 1, is_backward=True))
    return Graph(tuple(nodes), tuple(Value(node.name, 1) for node in nodes), name=f"linear-{num_layers}")


def model_of(graph: Graph, form: str) -> StageModel:
    rows = Formulation(tight=form.endswith("tight rows"))
    space = unpartitioned_space(graph, num_stages=len(graph.nodes)) if form == "unpartitioned" else full_space(graph)
    return build_model(graph, BUDGET, space, form=rows)


def compute(point: Point) -> dict[str, Any]:
    model = model_of(linear_network(NUM_LAYERS, point["reads"]), point["form"])
    started = time.perf_counter()
    relaxed = backends.relax(model, "simplex", time_limit_s=point["time_limit_s"])
    relaxed_at = time.perf_counter()
    answer = backends.solve_milp(model, "highs", time_limit_s=point["time_limit_s"], seed=point["seed"])
    cost = None if answer.x is None else round(model.fixed_cost + float(model.cost @ answer.x))
    return {
        "relaxed_cost": relaxed.bound,
        "relaxation_s": relaxed_at - started,
        "cost": cost,
        "bound": answer.bound,
        "optimal": answer.optimal,
        "milp_s": time.perf_counter() - relaxed_at,
        "columns": len(model.cost),
        "rows": model.matrix.shape[0],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each solve")
    add_options(parser)
    options = parser.parse_args(arguments)
    points = [
        {"reads": reads, "form": form, "time_limit_s": options.time_limit, "seed": 0}
        for reads in READS
        for form in FORMS
    ]
    folder = RESULTS_FOLDER / "checkmate"
    done = run_points(points, compute, CHECKMATE, part="integrality", runner=runner_of(options))
    write_page()
    print(table(done))
    _plot(table_rows(done), folder / "integrality.png")


def table(done: list[dict[str, Any]]) -> str:
    head = ("gradient reads", "form", "optimum", "relaxation", "gap", "MILP solved")
    return tabulate(table_rows(done), head, floatfmt=".2f") + "\n"


def table_rows(done: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    least = {reads: min(entry["result"]["cost"] for entry in done if _proved(entry, reads)) for reads in READS}
    rows = []
    for entry in in_order(done, reads=READS, form=FORMS):
        point, result = entry["point"], entry["result"]
        gap = least[point["reads"]] / result["relaxed_cost"]
        solved = f"{result['milp_s']:.1f} s" if result["optimal"] else f"not in {result['milp_s']:.0f} s"
        rows.append((point["reads"], point["form"], least[point["reads"]], result["relaxed_cost"], gap, solved))
    return rows


def _proved(entry: dict[str, Any], reads: str) -> bool:
    return entry["point"]["reads"] == reads and entry["result"]["optimal"]


def _plot(rows: list[tuple[Any, ...]], path: Any) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    axes.barh([f"{row[1]} ({row[0]})" for row in rows][::-1], [row[4] for row in rows][::-1])
    axes.set_xscale("log")
    axes.set_xlabel("integrality gap: optimum / LP relaxation")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
