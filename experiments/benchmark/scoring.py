"""Scores schedules of anyone's on the graphs of the benchmark, by the simulator and against the best known ones."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from checkmate_tf.errors import ScheduleError
from checkmate_tf.schedule import Schedule, check_schedule
from checkmate_tf.serialization import load_graph, load_schedule
from checkmate_tf.simulator import simulate
from experiments.benchmark.instances import MANIFEST, BenchmarkError, Entry, load_manifest
from experiments.benchmark.results import Known, known_of
from experiments.running import Row, environment_cells


@dataclass(frozen=True)
class Score:
    """What a schedule is worth at one budget of its graph.

    Args:
        order: "fixed" where first computations are in the input order, otherwise "free".
        found_after_s: what the file says it took, where it says so.
        known: the best known schedule and lower bound of that order.
    """

    entry: Entry
    budget_percent: int
    order: str
    peak_bytes: int
    overhead_percent: float
    within_budget: bool
    found_after_s: float | None
    known: Known


def manifest_folder(path: Path) -> Path:
    """The folder of a schedule's graph: the nearest one above the schedule that has a manifest."""
    found = next((folder for folder in path.resolve().parents if (folder / MANIFEST).exists()), None)
    if found is None:
        raise BenchmarkError(f"no folder above {path} has a {MANIFEST}; name that of the graphs with --folder")
    return found


def scores(path: Path, folder: Path, rows: Sequence[Row]) -> list[Score]:
    """The schedule's score at each budget of its graph.

    Raises BenchmarkError or ScheduleError where the file is no schedule of a graph of the folder.
    """
    schedule = load_schedule(path)
    data = json.loads(path.read_text())
    entry = _entry_named(data.get("graph"), path, load_manifest(folder))
    graph = load_graph(folder / entry.file)
    try:
        check_schedule(graph, schedule)
    except ScheduleError as error:
        raise BenchmarkError(f"{path} is no schedule of {entry.name}: {error}") from error
    if schedule.fetches:
        raise BenchmarkError(f"{path} fetches values from host memory, which the benchmark does not allow")
    simulation, order = simulate(graph, schedule), order_of(schedule)
    after_s = data.get("solve_time_s")
    return [
        Score(
            entry=entry,
            budget_percent=budget.percent,
            order=order,
            peak_bytes=simulation.peak_bytes,
            overhead_percent=100 * simulation.overhead,
            within_budget=simulation.peak_bytes <= budget.bytes,
            found_after_s=float(after_s) if isinstance(after_s, int | float) else None,
            known=known_of(rows, entry.digest, budget.percent, order),
        )
        for budget in entry.budgets
    ]


def order_of(schedule: Schedule) -> str:
    """ "fixed" where every node is first computed after all that come before it in the graph's file."""
    latest = -1
    for node in schedule.order:
        if node > latest + 1:
            return "free"
        latest = max(latest, node)
    return "fixed"


def _entry_named(name: Any, path: Path, entries: Sequence[Entry]) -> Entry:
    found = next((entry for entry in entries if entry.name == name), None)
    if found is None:
        names = ", ".join(entry.name for entry in entries)
        raise BenchmarkError(f"{path} is of the graph {name!r}; 'graph' must be one of {names}")
    return found


def table(scored: Iterable[tuple[str, Score]]) -> str:
    """One line a file and budget."""
    headers = ("file", "graph", "budget, %", "order", "peak, %", "within", "overhead, %")
    headers += ("best known, %", "by", "behind it, points", "lower bound, %", "above it, points")
    return tabulate(
        [[name, *_cells(score)] for name, score in scored], headers, tablefmt="github", disable_numparse=True
    )


def _cells(score: Score) -> list[str]:
    known, overhead = score.known, score.overhead_percent
    peak_percent = 100 * score.peak_bytes / score.entry.retain_all_peak_bytes
    cells = [score.entry.name, str(score.budget_percent), score.order, f"{peak_percent:.2f}"]
    if not score.within_budget:
        return [*cells, "no", f"{overhead:.4f}"]
    cells += ["yes", f"{overhead:.4f}"]
    if known.overhead_percent < float("inf"):
        cells += [f"{known.overhead_percent:.4f}", known.solver, f"{overhead - known.overhead_percent:.4f}"]
    else:
        cells += ["", "", ""]
    return [*cells, f"{known.bound_percent:.4f}", f"{overhead - known.bound_percent:.4f}"]


def entry_key(score: Score, solver: str) -> Row:
    """What names the row of a schedule that its author enters under a name."""
    instance = {"graph": score.entry.name, "digest": score.entry.digest, "budget_percent": str(score.budget_percent)}
    return {**instance, "order": score.order, "solver": solver, "overhead_percent": f"{score.overhead_percent:.6g}"}


def entry_row(score: Score) -> dict[str, Any]:
    """The other cells of that row."""
    cells = {"nodes": score.entry.nodes, "status": "FEASIBLE", "found_after_s": score.found_after_s}
    return cells | environment_cells()
