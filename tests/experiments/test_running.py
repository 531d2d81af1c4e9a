"""Experiments' runner: results are kept as they come, and nothing is run twice."""

import json
import time

import pytest

from experiments.running import ENVIRONMENT, Runner, read_points, read_rows, run_apart, run_points, run_rows


def square(point):
    if point["x"] < 0:
        raise ValueError(point["x"])
    return point["x"] ** 2


def squares(point):
    return {"square": square(point), "third": point["x"] / 3}


@pytest.mark.parametrize("workers", [1, 2])
def test_points_come_back_in_order(tmp_path, workers):
    points = [{"x": x} for x in (3, 1, 2)]
    done = run_points(points, square, tmp_path / "r.jsonl", runner=Runner(workers))
    assert [entry["result"] for entry in done] == [9, 1, 4]
    assert [entry["result"] for entry in read_points(tmp_path / "r.jsonl")] == [1, 4, 9]


def test_points_are_not_run_again(tmp_path):
    path = tmp_path / "r.jsonl"
    with pytest.raises(ValueError, match="-1"):
        run_points([{"x": 3}, {"x": -1}], square, path, part="a")
    kept = json.loads(path.read_text())
    assert (kept["part"], kept["point"], kept["result"]) == ("a", {"x": 3}, 9)
    assert set(kept["environment"]) == {"commit", "python", "machine", "versions"}
    path.write_text(json.dumps({**kept, "result": 10}) + "\n")
    assert [entry["result"] for entry in run_points([{"x": 3}, {"x": 2}], square, path, part="a")] == [10, 4]
    assert [entry["result"] for entry in run_points([{"x": 3}], square, path, part="b")] == [9]
    assert len(read_points(path, "a")) == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_rows_are_appended_and_not_measured_again(tmp_path, jobs):
    path, columns = tmp_path / "r.csv", ("x", "square", "third", "error")
    with pytest.raises(ValueError, match="-1"):
        run_rows([{"x": 3}, {"x": -1}], squares, path, columns, jobs=1, digits=3)
    assert read_rows(path) == [{"x": "3", "square": "9", "third": "1", "error": ""}]
    path.write_text(path.read_text().replace("9", "10"))
    rows = run_rows([{"x": x} for x in (3, 2, 1)], squares, path, columns, jobs=jobs, digits=3)
    assert rows == read_rows(path)
    assert sorted((row["x"], row["square"], row["third"]) for row in rows) == [
        ("1", "1", "0.333"),
        ("2", "4", "0.667"),
        ("3", "10", "1"),
    ]
    assert not list(tmp_path.glob("*.partial"))


def test_a_failure_leaves_what_has_not_begun(tmp_path):
    begun = []

    def measure(point):
        begun.append(point)
        time.sleep(0.02)
        return squares(point)

    with pytest.raises(ValueError, match="-1"):
        run_rows([{"x": x} for x in (1, -1, *range(2, 50))], measure, tmp_path / "r.csv", ("x", "square"))
    assert len(begun) < 10


def test_what_is_no_cell_is_kept_beforehand(tmp_path):
    path, kept = tmp_path / "r.csv", []
    run_rows([{"x": 3}], squares, path, ("x", "square"), beforehand=lambda point, row: kept.append(row.pop("third")))
    assert kept == [1.0]
    assert read_rows(path) == [{"x": "3", "square": "9"}]


def compute(point):
    return [{"power": power, "value": (point["x"] + point["more"]) ** power} for power in (1, 2)]


def test_a_point_is_computed_in_a_process_of_its_own_and_may_have_several_rows(tmp_path):
    path, module = tmp_path / "r.csv", "tests.experiments.test_running"
    columns, settings = ("x", "power", "value"), {"more": 1}
    first = run_apart(module, [{"x": 3.0}], path, columns, settings=settings)
    assert [(row["power"], row["value"]) for row in first] == [("1", "4"), ("2", "16")]
    assert tuple(first[0]) == (*columns, "error", *ENVIRONMENT)
    assert all(row["commit"] and "cores" in row["machine"] and "python" in row["versions"] for row in first)
    path.write_text(path.read_text().replace("16", "17"))
    rows = run_apart(module, [{"x": 3.0}, {"x": "a"}], path, columns, settings=settings)
    assert [row["value"] for row in rows] == ["4", "17", ""]
    assert rows[-1]["error"].startswith("TypeError")
    assert not first[0]["error"]
