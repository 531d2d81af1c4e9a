"""The tests that the experiment of what Keras users do takes rows from are there, and its results are of those rows."""

from pathlib import Path

import pytest

from experiments.keras_users.__main__ import OTHER_ROWS, RESULTS, points
from experiments.running import read_rows

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", [test for _, _, test in OTHER_ROWS])
def test_tests_are_there(name: str) -> None:
    file, _, test = name.partition("::")
    assert f"def {test.partition('[')[0]}(" in (TESTS / file).read_text()


def test_results_are_of_the_rows() -> None:
    names = [(point["section"], point["row"], point["test"]) for point in points()]
    kept = [(row["section"], row["row"], row["test"]) for row in read_rows(RESULTS)]
    assert len(set(names)) == len(names)
    assert sorted(kept) == sorted(names)
