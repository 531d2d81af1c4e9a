"""Importing a solver, and the libraries behind it, is part of its time limit."""

import os
import subprocess
import sys
import time

import pytest

from checkmate_tf.solvers import Status, loading, registry, solve
from checkmate_tf.solvers.annealing import merging
from checkmate_tf.solvers.relaxation import solver as relaxation
from tests.graphs import training_chain


def test_the_time_that_importing_a_solver_takes_is_time_of_its_search(monkeypatch):
    remaining_s = []

    class Slow(registry.get_solver("ap_greedy").__class__):
        def search(self, search):
            remaining_s.append(search.remaining_s)
            return super().search(search)

    def choose(_):
        until = time.perf_counter() + 0.3
        while time.perf_counter() < until:
            pass
        return Slow()

    monkeypatch.setattr("checkmate_tf.solvers.solving.choose_solver", choose)
    assert solve(training_chain(12), "60%", solver="slow", time_limit_s=20.0).solve_time_s >= 0.3
    assert remaining_s[0] <= 19.7


def test_a_library_is_imported_only_where_the_time_left_is_more_than_an_import_took(monkeypatch):
    monkeypatch.setattr(loading, "_longest_s", [2.0])
    monkeypatch.delitem(sys.modules, "checkmate_tf.solvers.mip.pdlp", raising=False)
    assert not loading.can_load("mip.pdlp", 1.9)
    assert loading.can_load("mip.pdlp", 2.1)
    assert loading.can_load("search", 0.0)  # it is there
    loading.load("search")
    assert loading._longest_s[0] == 2.0  # the longest counts


def test_searches_do_without_a_library_that_there_is_no_time_to_import(monkeypatch):
    asked = []

    def can_load(module, _):
        asked.append(module)
        return False

    def refuse(*_, **__):
        raise AssertionError("CP-SAT was used")

    monkeypatch.setattr(relaxation, "can_load", can_load)
    monkeypatch.setattr(relaxation, "bound_with_cpsat", refuse)
    monkeypatch.setattr(merging, "can_load", can_load)
    chain = training_chain(12)
    start = {(20, 3)}
    events, proved = merging.merge_schedules(chain, 10**9, [], start, time_limit_s=1.0, work_limit=1.0)
    assert (events.tolist(), proved) == ([[20, 3]], False)
    assert solve(chain, "60%", solver="block_relaxation", time_limit_s=20.0).status is Status.OPTIMAL
    assert asked


@pytest.mark.parametrize("module", ["checkmate_tf.commands.solve", "checkmate_tf.commands.compare", "checkmate_tf"])
def test_what_a_solver_needs_is_not_imported_before_it_is_asked_for(module):
    ask = f"import sys, {module}; print(*{{'numba', 'scipy', 'highspy', 'ortools'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], env=os.environ, capture_output=True, text=True, check=True)
    assert not done.stdout.split()
