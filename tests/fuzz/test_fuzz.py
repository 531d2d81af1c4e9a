"""A few of the random inputs on every run, and what finds fault with them finds faults."""

import signal
import subprocess
import sys

import pytest

from tests.fuzz.__main__ import CHECKS
from tests.fuzz.reference import find_least_cost, simulate

# Two nodes of 5 bytes; a is read again at the end, after b.
GRAPH = {
    "resident_bytes": 1,
    "outputs": [2],
    "values": [{"size_bytes": 5}, {"size_bytes": 5}, {"size_bytes": 2}],
    "nodes": [
        {"inputs": [], "outputs": [0], "cost": 1, "workspace_bytes": 0, "recomputable": True},
        {"inputs": [], "outputs": [1], "cost": 1, "workspace_bytes": 3, "recomputable": True},
        {"inputs": [0], "outputs": [2], "cost": 4, "workspace_bytes": 0, "recomputable": True},
    ],
}


@pytest.mark.parametrize(
    ("check", "num_seeds"),
    [
        ("graph_file", 60),
        ("schedule_file", 60),
        ("cache_file", 10),
        ("solver", 60),
        ("output", 40),
        ("threads", 10),
        ("core_arguments", 200),
    ],
)
def test_random_inputs(check: str, num_seeds: int) -> None:
    for seed in range(num_seeds):
        CHECKS[check](seed)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_counts_are_printed_where_a_signal_ends_it(ending: signal.Signals) -> None:
    # As a shell starts it in its background, where an interrupt is ignored.
    ignoring = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    fuzz = (sys.executable, "-m", "tests.fuzz", "--only", "graph_file", "--seed", "7")
    with subprocess.Popen(
        (sys.executable, "-c", ignoring, *fuzz), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(ending)
        printed, _ = process.communicate(timeout=60)
    assert "inputs, seeds 7 to" in printed


def test_the_reference_is_as_by_hand() -> None:
    assert simulate(GRAPH, [0, 1, 2]) == (14, 6)  # while b runs: 1 + a 5 + b 5 + 3
    assert simulate(GRAPH, [0, 1, 0, 2]) == (9, 7)  # b alone: 1 + 5 + 3
    assert find_least_cost(GRAPH, 14, fixed=True) == 6
    assert find_least_cost(GRAPH, 9, fixed=True) == 7
    assert find_least_cost(GRAPH, 9, fixed=False) == 6  # b, a, c
    assert find_least_cost(GRAPH, 8, fixed=False) is None
