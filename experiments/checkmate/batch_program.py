"""Checkmate, section 6.4: the program whose variable is the batch size, as the paper writes it, beside our bisection.

The paper takes (9) with B x M_i in place of M_i, B a whole number to be maximized, and adds constraint (10): at most
one more forward pass. The rows of (9) for a batch of one define U in bytes of one row, so its memory constraint is
B x U <= what the parameters leave. That is quadratic. Divided by B it is linear: no U exceeds a variable, the bytes
that a row may take, which is minimized. B is what the parameters leave over that, rounded down. Nothing is lost by
this, as a schedule that fits B rows fits every smaller batch.

- quadratic: the paper's rows and the product, by CP-SAT, which multiplies whole numbers (the paper had Gurobi).
- divided by B: the same rows, by HiGHS.
- divided by B, tight rows: rows (a) to (d) of checkmate_milp instead.
- bisection: what Figure 6 is made with, `max_batch`.

    python -m experiments.checkmate.batch_program [--time-limit 120]
"""

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from tabulate import tabulate

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import from_stages
from checkmate_tf.simulator import simulate, simulate_stock
from checkmate_tf.solvers.checkmate import backends
from checkmate_tf.solvers.checkmate.model import StageModel, build_model
from checkmate_tf.solvers.checkmate.rows import Formulation
from checkmate_tf.solvers.checkmate.stage_space import full_space
from checkmate_tf.solvers.mip.highs import HighsSettings, solve_with_highs
from checkmate_tf.solvers.mip.program import MixedIntegerProgram
from experiments.checkmate.integrality import NUM_LAYERS, READS, linear_network
from experiments.checkmate.max_batch import DEVICE_BYTES, fixed_bytes, largest_batch, most_cost, one_row
from experiments.checkmate.page import write_page
from experiments.running import CHECKMATE, Point, add_options, in_order, run_points, runner_of

# Networks of section 4.6, of 4 and 8 layers of a byte a row in a memory of 1,000, and layer graphs in 16 GB.
LINEAR = {"linear-4": 4, f"linear-{NUM_LAYERS}": NUM_LAYERS}
GRAPHS = (*LINEAR, "vgg16", "vgg19", "unet")
LINEAR_BYTES = 1000
QUADRATIC, DIVIDED, TIGHT, BISECTION = "quadratic", "divided by B", "divided by B, tight rows", "bisection"
METHODS = (QUADRATIC, DIVIDED, TIGHT, BISECTION)
_TOLERANCE = 1e-6  # what HiGHS may have added to its bound, in proportion


@dataclass(frozen=True)
class LargestBatch:
    """A batch that fits at the cost of at most one more forward pass, the overhead there, and what none is above."""

    batch_size: int
    at_most: int | None
    overhead: float | None

    @property
    def is_proved(self) -> bool:
        return self.batch_size == self.at_most


def solve_program(graph: Graph, free_bytes: int, method: str, *, time_limit_s: float) -> LargestBatch:
    """Solves the program for a graph of one row; `free_bytes` is what parameters and their gradients leave."""
    model = _model_of(graph, tight=method == TIGHT)
    if method == QUADRATIC:
        point, at_most = _solve_quadratic(graph, model, free_bytes, time_limit_s)
    else:
        point, at_most = _solve_divided(graph, model, free_bytes, time_limit_s)
    if point is None:
        return LargestBatch(0, at_most, None)
    simulation = simulate(graph, from_stages(graph, model.recompute(point) > 0.5))
    assert simulation.cost <= most_cost(graph)
    return LargestBatch(free_bytes // simulation.peak_bytes, at_most, simulation.overhead)


def _model_of(graph: Graph, *, tight: bool) -> StageModel:
    """(9) within the peak without rematerialization, which nobody needs to exceed: every U has that as its limit.

    The tight rows have a budget row without U where stages advance the frontier, so they are told nothing of that.
    """
    space = replace(full_space(graph), frontier_advancing=not tight)
    return build_model(graph, simulate_stock(graph).peak_bytes, space, form=Formulation(tight=tight))


def _solve_divided(
    graph: Graph, model: StageModel, free_bytes: int, time_limit_s: float
) -> tuple[np.ndarray | None, int | None]:
    """Minimizes the bytes of a row; a point of the model, and the largest batch not proved impossible."""
    program, unit_bytes = divided_program(graph, model), model.memory_unit_bytes
    found = solve_with_highs(program, HighsSettings(time_limit_s, absolute_gap=0.5 / unit_bytes))
    point = None if found.point is None else found.point[:-1]
    row_bytes = math.ceil(found.bound * unit_bytes * (1 - _TOLERANCE)) if math.isfinite(found.bound) else 0
    return point, free_bytes // row_bytes if row_bytes > 0 else None


def divided_program(graph: Graph, model: StageModel) -> MixedIntegerProgram:
    """The model with one more column, the memory of a row, which no U exceeds and which is all that costs anything."""
    first_usage = len(model.cost) - model.num_usage
    below = sparse.hstack([
        sparse.csr_array((model.num_usage, first_usage)),
        sparse.eye_array(model.num_usage),
        -np.ones((model.num_usage, 1)),
    ])  # fmt: skip
    costs = sparse.csr_array(np.append(model.cost, 0.0)[None, :] / backends.model_cost_scale(model))
    rows = sparse.vstack([sparse.hstack([model.matrix, sparse.csr_array((model.matrix.shape[0], 1))]), below, costs])
    allowed = (most_cost(graph) - model.fixed_cost) / backends.model_cost_scale(model)  # (10)
    return MixedIntegerProgram(
        costs=np.append(np.zeros_like(model.cost), 1.0),
        lower=np.append(model.lower, 0.0),
        upper=np.append(model.upper, model.upper[first_usage:].max()),
        is_integer=np.append(model.integer, False),
        rows=sparse.csr_array(rows),
        row_lower=np.concatenate([model.row_lower, np.full(model.num_usage + 1, -np.inf)]),
        row_upper=np.concatenate([model.row_upper, np.zeros(model.num_usage), [allowed]]),
    )


def _solve_quadratic(
    graph: Graph, model: StageModel, free_bytes: int, time_limit_s: float
) -> tuple[np.ndarray | None, int | None]:
    """Maximizes B over the products of B and U; a point of the model, and the largest batch not proved impossible."""
    from checkmate_tf.solvers.mip.ortools_library import cp_model

    matrix, row_lower, row_upper = model.without_usage()
    num_columns, num_plain = matrix.shape[1], matrix.shape[0] - model.num_usage
    program = cp_model.CpModel()
    x = [program.new_bool_var(f"x{column}") for column in range(num_columns)]
    most_rows = free_bytes // max(1, graph.resident_bytes + int(graph.sizes_bytes.max()))
    batch_size = program.new_int_var(1, most_rows, "B")

    def activity(row: int, unit: float) -> Any:
        here = slice(matrix.indptr[row], matrix.indptr[row + 1])
        coefficients = np.rint(matrix.data[here] * unit).astype(int).tolist()
        return cp_model.LinearExpr.weighted_sum([x[column] for column in matrix.indices[here]], coefficients)

    for row in range(num_plain):
        if math.isfinite(row_lower[row]):
            program.add(activity(row, 1.0) >= round(row_lower[row]))
        if math.isfinite(row_upper[row]):
            program.add(activity(row, 1.0) <= round(row_upper[row]))
    limits = model.upper[num_columns:]
    for row, limit in zip(range(num_plain, matrix.shape[0]), limits, strict=True):
        unit_bytes = model.memory_unit_bytes
        usage = program.new_int_var(0, round(limit * unit_bytes), f"U{row}")
        program.add(usage == round((limit - row_upper[row]) * unit_bytes) + activity(row, unit_bytes))
        product = program.new_int_var(0, free_bytes, f"BU{row}")
        program.add_multiplication_equality(product, [batch_size, usage])
    cost = model.cost[:num_columns].astype(int).tolist()
    program.add(cp_model.LinearExpr.weighted_sum(x, cost) <= most_cost(graph) - round(model.fixed_cost))  # (10)
    program.maximize(batch_size)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit_s
    solver.parameters.num_workers = 1
    status = solver.solve(program)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, most_rows if status == cp_model.UNKNOWN else 0
    point = np.zeros(len(model.cost))
    point[:num_columns] = [solver.value(column) for column in x]
    return point, math.floor(solver.best_objective_bound + 0.5)


def graph_and_bytes(name: str) -> tuple[Graph, int]:
    """The graph of one row, and what parameters and their gradients leave."""
    if name in LINEAR:
        return linear_network(LINEAR[name], READS[-1]), LINEAR_BYTES
    return one_row(name), DEVICE_BYTES - fixed_bytes(name)


def compute(point: Point) -> dict[str, Any]:
    graph, free_bytes = graph_and_bytes(point["graph"])
    begun = time.perf_counter(), time.process_time()
    if point["method"] == BISECTION:
        searched = largest_batch(graph, free_bytes, point["time_limit_s"], seed=0)
        found = LargestBatch(searched["batch_size"], searched["at_most"], searched["overhead"])
    else:
        found = solve_program(graph, free_bytes, point["method"], time_limit_s=point["time_limit_s"])
    return {
        "nodes": len(graph.nodes),
        "batch_size": found.batch_size,
        "at_most": found.at_most,
        "overhead": found.overhead,
        "allowed_overhead": most_cost(graph) / graph.baseline_cost - 1,
        "seconds": time.perf_counter() - begun[0],
        "cpu_s": time.process_time() - begun[1],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="*", default=list(GRAPHS), choices=GRAPHS)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=METHODS)
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for a program, and for each solve")
    add_options(parser)
    parser.set_defaults(workers=1)  # so that methods have the same machine
    options = parser.parse_args(arguments)
    points: list[Point] = [
        {"graph": graph, "method": method, "time_limit_s": options.time_limit}
        for graph in options.graphs
        for method in options.methods
    ]
    done = run_points(points, compute, CHECKMATE, part="batch_program", runner=runner_of(options))
    write_page()
    print(table(done))


def table(done: list[dict[str, Any]]) -> str:
    rows = []
    for entry in in_order(done, graph=GRAPHS, method=METHODS):
        point, result = entry["point"], entry["result"]
        overhead = (
            None if result["overhead"] is None else f"{result['overhead']:.1%} of {result['allowed_overhead']:.1%}"
        )
        rows.append(
            (
                point["graph"],
                result["nodes"],
                point["method"],
                result["batch_size"] or None,
                result["at_most"],
                overhead,
                f"{result['seconds']:.1f}",
                f"{point['time_limit_s']:.0f}",
            )
        )
    headers = ("graph", "nodes", "method", "batch", "at most", "overhead", "seconds", "limit, s")
    return tabulate(rows, headers, missingval="-", disable_numparse=True) + (
        "\n\nAt most: proved. The bisection's limit is that of each of its solves.\n"
    )


if __name__ == "__main__":
    main()
