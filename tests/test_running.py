"""Experiments' runner: results are kept, and nothing is run twice."""

import json

import pytest

from experiments.running import Runner, run_points


def square(point):
    if point["x"] < 0:
        raise ValueError(point["x"])
    return point["x"] ** 2


@pytest.mark.parametrize("workers", [1, 2])
def test_points_come_back_in_order(tmp_path, workers):
    points = [{"x": x} for x in (3, 1, 2)]
    done = run_points(points, square, tmp_path / "r.json", runner=Runner(workers))
    assert [entry["result"] for entry in done] == [9, 1, 4]


def test_restarts_where_it_stopped(tmp_path):
    path = tmp_path / "r.json"
    with pytest.raises(ValueError, match="-1"):
        run_points([{"x": 3}, {"x": -1}], square, path)
    kept = json.loads(path.read_text())
    assert [entry["result"] for entry in kept["points"]] == [9]
    assert set(kept["environment"]) == {"commit", "python", "machine", "versions"}
    kept["points"][0]["result"] = 10
    path.write_text(json.dumps(kept))
    assert [entry["result"] for entry in run_points([{"x": 3}, {"x": 2}], square, path)] == [10, 4]
