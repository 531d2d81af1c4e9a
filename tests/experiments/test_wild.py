"""How the trial of small models compares trainings, and what data it trains on."""

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras")

from checkmate_tf.measurement.difference import StepDifference, UpdateDifference
from experiments.wild import trial
from experiments.wild.models import LOOPS, MODELS


def write(path, *groups):
    np.savez(path, **{f"{group} {index}": each for group, part in enumerate(groups) for index, each in enumerate(part)})
    return path


def test_trainings_differ_by_the_largest_entry_of_a_variable(tmp_path):
    velocity = np.array([0.0, 2.0])
    one = write(tmp_path / "one.npz", [velocity], [np.array([4.0, -8.0]), np.array([1e-6])], [np.array([1.0])])
    other = write(tmp_path / "other.npz", [velocity], [np.array([4.0, -6.0]), np.array([2e-6])], [np.array([np.nan])])
    of_gradients, first, second = trial.differences(one, other)
    assert (of_gradients, first) == (0.0, 0.25)  # not the second weight, whose millionth counts as of a thousandth
    assert np.isnan(second)


def test_integers_that_differ_at_all_count_as_one(tmp_path):
    one = write(tmp_path / "one.npz", [np.array([1.0])], [np.array([2**31, 4], "uint32")])
    other = write(tmp_path / "other.npz", [np.array([1.0])], [np.array([2**31, 5], "uint32")])
    assert trial.differences(one, other) == [0.0, 1.0]
    assert trial.differences(one, one) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("found", "stock", "part"),
    [
        ([1e-6, 1e-6], [0.0, 0.0], ""),
        ([1e-6, 1e-3], [0.0, 0.0], "unknown_length"),
        ([1e-3, 1e-3], [1e-3, 1e-3], ""),
        ([np.nan, np.nan], [0.0, 0.0], "fit"),
    ],
)
def test_a_row_names_the_first_part_that_is_further_from_stock_than_stock_is(found, stock, part):
    assert trial.find_first_apart(["fit", "unknown_length"], found, stock) == part


def test_a_row_names_the_update_that_differs_most_of_all_plans():
    small, large = UpdateDifference("kernel", 1e-3, 2e-3), UpdateDifference("key/bias", 2.0, 1.5)
    found = [
        None,
        StepDifference(0.0),
        StepDifference(0.0, updates=(small,)),
        StepDifference(0.0, updates=(large, small)),
    ]
    assert trial.describe_updates(found) == "2: key/bias 2e+00 (stock 2e+00)"
    assert trial.describe_updates(found[:2]) == ""


@pytest.mark.parametrize("name", ["tab_transformer", "triplets", "known_words"])
def test_a_generator_has_the_batches_of_fit_and_no_length(name):
    entry = MODELS[name]
    batches = entry.of_unknown_length(2.5)
    assert batches.cardinality() == tf.data.UNKNOWN_CARDINALITY
    first, _, last = (tf.nest.flatten(batch) for batch in batches)
    arguments = entry.fit_arguments(2.5)
    given = [np.asarray(each) for part in ("x", "y", "sample_weight") for each in tf.nest.flatten(arguments.get(part))]
    given = [each for each in given if each.ndim]
    for ours, theirs, rest in zip(first, given, last, strict=True):
        np.testing.assert_array_equal(ours, theirs[: entry.batch_size])
        np.testing.assert_array_equal(rest, theirs[2 * entry.batch_size :])


def test_busy_cores_are_free_again():
    with trial.busy_cores() as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_names_are_unique_and_say_which_example_they_are_after():
    from experiments.wild.models import ROOMS

    names = [model.name for room in ROOMS for model in room.MODELS] + list(LOOPS)
    assert len(names) == len(set(names))
    assert all(loop.after for loop in LOOPS.values())
