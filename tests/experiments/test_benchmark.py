"""The open benchmark: its manifest, its scores, and what it keeps of runs."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from checkmate_tf.schedule import Schedule
from checkmate_tf.serialization import graph_to_json, load_graph, save_graph
from checkmate_tf.simulator import simulate
from experiments.benchmark import __main__ as commands
from experiments.benchmark import results, scoring
from experiments.benchmark.instances import (
    BenchmarkError,
    build,
    digest_of,
    entry_of,
    load_manifest,
    write_manifest,
)
from experiments.benchmark.results import inverse_cost_s, known_of, primal_integral_percent
from experiments.running import read_rows
from tests.graphs import training_chain

SQRT_N = Path(results.__file__).with_name("sqrt_n.py")


@pytest.fixture
def folder(tmp_path):
    """The chain of four layers: f0 to f3, the loss, and their gradients; 1 byte and 1 unit of cost each."""
    graph = replace(training_chain(4), name="chain")
    save_graph(graph, tmp_path / "chain.json")
    write_manifest(tmp_path, [entry_of(graph, name="chain", networks="layers", file="chain.json")])
    return tmp_path


def schedule_file(folder: Path, order: list[int], **more) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps({"format": "checkmate-schedule/1", "graph": "chain", "order": order, **more}))
    return path


def a_row(**cells) -> dict[str, str]:
    blank = dict.fromkeys(results.COLUMNS, "")
    return blank | {"budget_percent": "80", "order": "fixed", "time_limit_s": "10"} | cells


def test_a_layer_graph_is_built_with_its_manifest(tmp_path):
    (entry,) = build(tmp_path, ["layers"], ["vgg16-b256"])
    assert load_manifest(tmp_path) == [entry]
    graph = load_graph(tmp_path / entry.file)
    assert (entry.nodes, entry.digest) == (len(graph.nodes), digest_of(graph))
    assert entry.name == graph.name
    # VGG16's largest node is at 71 % of the peak, so 50 and 25 % are left out.
    assert [budget.percent for budget in entry.budgets] == [80]
    assert entry.budgets[0].bytes == entry.retain_all_peak_bytes * 80 // 100 > entry.least_step_bytes


def test_a_digest_is_of_what_a_score_depends_on():
    graph = training_chain(4)
    named = replace(graph, name="other", nodes=(replace(graph.nodes[0], name="x"), *graph.nodes[1:]))
    dearer = replace(graph, nodes=(replace(graph.nodes[0], cost=2), *graph.nodes[1:]))
    assert digest_of(named) == digest_of(graph) != digest_of(dearer)


def test_a_schedule_is_scored_by_hand(folder):
    graph = load_graph(folder / "chain.json")
    nodes = list(range(len(graph.nodes)))
    stock = simulate(graph, Schedule.of(nodes)).peak_bytes
    entry = load_manifest(folder)[0]
    rows = [
        a_row(digest=entry.digest, solver="theirs", overhead_percent="5", bound_percent="3", found_after_s="2"),
        a_row(digest="other", solver="another", overhead_percent="1", bound_percent="0"),
    ]
    (score, *_) = scoring.scores(schedule_file(folder, [0, 1, 0, *nodes[2:]], solve_time_s=4), folder, rows)
    assert (score.order, score.peak_bytes, score.found_after_s) == ("fixed", stock, 4.0)
    assert score.overhead_percent == pytest.approx(100 / len(nodes))
    assert not score.within_budget
    assert (score.known.overhead_percent, score.known.solver, score.known.bound_percent) == (5, "theirs", 3)


def test_first_computations_tell_the_order():
    assert scoring.order_of(Schedule((0, 1, 0, 2, 1, 3))) == "fixed"
    assert scoring.order_of(Schedule((0, 2, 1, 3))) == "free"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"graph": "chain", "order": [0, 2]}, "is no schedule of chain: position 1 .* reads node 1"),
        ({"graph": "cycle", "order": [0]}, "is of the graph 'cycle'; 'graph' must be one of chain"),
    ],
)
def test_what_is_no_schedule_of_a_graph_is_named(folder, content, message):
    path = folder / "mine.json"
    path.write_text(json.dumps({"format": "checkmate-schedule/1", **content}))
    with pytest.raises(BenchmarkError, match=message):
        scoring.scores(path, folder, [])


def test_a_folder_without_a_manifest_is_named(tmp_path, capsys):
    path = schedule_file(tmp_path, [0])
    with pytest.raises(SystemExit, match="2"):
        commands.main(["check", str(path)])
    assert "has a manifest.json; name that of the graphs with --folder" in capsys.readouterr().err


def test_the_square_root_schedule_needs_only_the_standard_library(tmp_path):
    (tmp_path / "graph.json").write_text(json.dumps(graph_to_json(training_chain(16))))
    command = [sys.executable, "-I", "-S", str(SQRT_N), str(tmp_path / "graph.json")]
    order = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["order"]
    graph = training_chain(16)
    # 16 forward nodes and the loss are 4 segments of 5, 5, 5 and 2: all but the last node of each run again.
    assert len(order) == len(graph.nodes) + 4 + 4 + 4 + 1
    stock = simulate(graph, Schedule.of(range(len(graph.nodes)))).peak_bytes
    assert simulate(graph, Schedule.of(order)).peak_bytes < 0.7 * stock


def test_solved_and_checked_schedules_are_kept(folder, monkeypatch, capsys):
    path = folder / "results" / "benchmark.csv"
    monkeypatch.setattr(commands, "RESULTS", path)
    monkeypatch.setattr(commands, "PAGE", path.with_suffix(".md"))
    monkeypatch.setattr(results, "RESULTS", path)
    entries = load_manifest(folder)
    rows = results.solve_all(
        folder, entries, solvers=["exhaustive"], budgets=[80], orders=["fixed"], time_limit_s=10, path=path
    )
    graph, entry = load_graph(folder / "chain.json"), entries[0]
    (row,) = rows
    assert (row["budget_percent"], row["status"]) == ("80", "OPTIMAL")
    kept = folder / "schedules" / "chain-80-fixed-exhaustive.json"
    (score, *_) = scoring.scores(kept, folder, rows)
    assert score.within_budget
    assert score.overhead_percent == pytest.approx(score.known.overhead_percent, rel=1e-4)
    assert score.known.gap_percent == pytest.approx(0, abs=1e-3)
    for _ in range(2):
        commands.main(["check", str(kept), "--record", "mine"])
    assert [row["solver"] for row in read_rows(path)] == ["exhaustive", "mine"]
    assert "| chain | 9 | 80 " in " ".join(results.page().split())
    assert entry.nodes == len(graph.nodes)


def test_primal_integral_by_hand():
    # Baseline 10: nothing for 2 s, 20 for 3 s, 12.5 for the other 5 of 10 s.
    inverse = inverse_cost_s([(5.0, 12.5), (2.0, 20)], 10.0, 10)
    assert inverse == pytest.approx(3 * 0.5 + 5 * 0.8)
    row = a_row(digest="d", overhead_percent="25", inverse_cost_s=str(inverse))
    known = known_of([row], "d", 80, "fixed")
    # 2 s at a distance of 1, 3 s at (20 - 12.5) / 20, and 5 s at none.
    assert primal_integral_percent(row, known) == pytest.approx(100 * (2 + 3 * 0.375) / 10)
    better = known_of([row, a_row(digest="d", overhead_percent="0", order="fixed")], "d", 80, "fixed")
    assert primal_integral_percent(row, better) == pytest.approx(100 * (2 + 3 * 0.5 + 5 * 0.2) / 10)


def test_a_schedule_holds_in_free_order_and_a_bound_in_fixed():
    fixed = a_row(digest="d", solver="one", overhead_percent="2", bound_percent="1")
    free = a_row(digest="d", solver="two", overhead_percent="3", bound_percent="1.5", order="free")
    assert known_of([fixed, free], "d", 80, "free") == results.Known(2, "one", "", 1.5)
    assert known_of([fixed, free], "d", 80, "fixed") == results.Known(2, "one", "", 1.5)
    assert known_of([free], "d", 80, "fixed").overhead_percent == float("inf")


def test_the_state_counts_instances_by_what_is_proved():
    found = {"graph": "a", "nodes": "5", "status": "FEASIBLE"}
    rows = [
        a_row(**found, digest="1", solver="mine", overhead_percent="2", bound_percent="2", found_after_s="3"),
        a_row(**found, digest="2", solver="auto", overhead_percent="2", bound_percent="1.5", found_after_s="1"),
        a_row(**found, digest="3", solver="auto", overhead_percent="9", found_after_s="1"),
        a_row(**(found | {"status": "INFEASIBLE"}), digest="4", solver="auto"),
        a_row(**(found | {"status": "NOT_FOUND"}), digest="5", solver="auto"),
    ]
    _, _, fixed, free = (line.strip("|").split("|") for line in results.state_table(rows).splitlines())
    assert [cell.strip() for cell in fixed] == ["fixed", "5", "1", "1", "1", "1", "1", "auto 2, mine 1"]
    assert [cell.strip() for cell in free[:3]] == ["free", "0", "0"]


def test_the_table_of_the_paper_has_geometric_means_of_what_both_solved():
    def run(graph: str, solver: str, overhead: str) -> dict[str, str]:
        cells = {"graph": graph, "solver": solver, "overhead_percent": overhead, "status": "NOT_FOUND", "nodes": "9"}
        return a_row(order="free", budget_percent="50", **cells)

    rows = [run("one", results.AS_PUBLISHED, "21"), run("one", "auto", "10"), run("three", "auto", "1")]
    rows += [run("two", results.AS_PUBLISHED, "100"), run("two", "auto", "")]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in results.paper_table(rows).splitlines()[2:]]
    assert lines == [
        ["one", "9", "21.00", "10.00"],
        ["two", "9", "100.00", "not_found"],
        ["mean (networks)", "", "21.00 (1)", "10.00 (1)"],
    ]
    rows += [run("four", results.AS_PUBLISHED, "44"), run("four", "auto", "10")]
    assert "| 32.00 (2)" in results.paper_table(rows)  # 1.21 and 1.44
