"""Worker processes: what goes wrong in one costs nothing but that one."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from pickle import PicklingError

import numpy as np
import pytest

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import check_schedule
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.exhaustive import Exhaustive
from checkmate_tf.solvers.portfolio import auto, worker
from checkmate_tf.solvers.portfolio.race import Contestant, Race
from checkmate_tf.solvers.portfolio.worker import Message, Task, Workers
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.relaxation.solver import BlockRelaxation
from tests.graphs import training_chain

_GIB = 2**30


@dataclass(frozen=True)
class Misbehaving(Solver):
    """Crashes, is killed the first time (`marker` then exists), hoards memory, never ends or raises."""

    how: str = "crash"
    marker: str = ""

    def search(self, search):
        if self.how == "crash":
            os.abort()
        if self.how == "killed once":
            if Path(self.marker).exists():
                return Exhaustive().search(search)
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "hoard":
            np.ones(64 * _GIB, dtype=np.int8)
        if self.how == "raise":
            raise ValueError("no such thing")
        while True:
            time.sleep(1)


def run_in_worker(task: Task) -> Message:
    """Runs one solver in a worker, to the end."""
    with Workers() as workers:
        workers.start(task)
        while True:
            for message in workers.messages(1.0):
                if message.update is None:
                    return message


def _task(solver: Solver, limit_s: float = 20.0) -> Task:
    return Task(solver, Problem(training_chain(12), 15), limit_s, 0, 4 * _GIB)


def _with_path(monkeypatch):
    """Workers must be able to import this module."""
    monkeypatch.setenv("PYTHONPATH", os.getcwd())


def test_a_result_comes_back():
    message = run_in_worker(_task(BlockRelaxation()))
    assert message.error is None
    assert isinstance(message.result, Result)
    graph = training_chain(12)
    check_schedule(graph, message.result.schedule, order="fixed")
    assert simulate(graph, message.result.schedule).peak_bytes <= 15


def test_the_start_of_the_process_is_part_of_the_time():
    task = replace(_task(BlockRelaxation(), 20.0), made_s=time.time() - 8)
    assert 0 < task.remaining_s <= 12
    assert replace(task, made_s=time.time() - 30).remaining_s > 0


def test_a_crash_is_an_error_message(monkeypatch):
    _with_path(monkeypatch)
    message = run_in_worker(_task(Misbehaving("crash")))
    assert (message.error, message.died) == ("was killed by SIGABRT", True)


def test_an_exception_is_named(monkeypatch):
    _with_path(monkeypatch)
    message = run_in_worker(_task(Misbehaving("raise")))
    assert (message.error, message.died) == ("ValueError: no such thing", False)


def test_a_lack_of_memory_is_an_error_message(monkeypatch):
    _with_path(monkeypatch)
    error = run_in_worker(_task(Misbehaving("hoard"))).error
    assert error == "ran out of its 4.00 GiB of memory, which Auto(memory_limit_bytes=...) sets"


def test_an_overrun_is_ended(monkeypatch):
    _with_path(monkeypatch)
    assert "overran" in run_in_worker(_task(Misbehaving("sleep"), 0.5)).error


def test_one_that_fails_leaves_the_others_running(monkeypatch):
    _with_path(monkeypatch)
    with Workers() as workers:
        bad = workers.start(_task(Misbehaving("crash")))
        good = workers.start(_task(BlockRelaxation()))
        ends = {}
        while len(workers):
            ends |= {m.worker: m for m in workers.messages(1.0) if m.update is None}
    assert ends[bad].error is not None
    assert ends[good].result is not None


def test_a_prepared_process_takes_the_next_task(monkeypatch):
    started = []
    start_process = worker._start_process
    monkeypatch.setattr(worker, "_start_process", lambda: started.append(start_process()) or started[-1])
    with Workers() as workers:
        workers.prepare(2)
        workers.start(_task(BlockRelaxation()))
        messages = []
        while len(workers):
            messages += workers.messages(1.0)
    found = [message.result for message in messages if message.result is not None]
    assert found
    assert [process.poll() is not None for _, process in started] == [True, True]  # the one without a task is ended


def test_a_task_that_cannot_be_sent_leaves_nothing_behind(monkeypatch):
    begun = []
    start = worker._start_process
    monkeypatch.setattr(worker, "_start_process", lambda: begun.append(start()) or begun[-1])
    task = _task(BlockRelaxation(start=(lambda: None,)))
    with Workers() as workers:
        with pytest.raises((AttributeError, PicklingError)):
            workers.start(task)
        assert len(workers) == 0
        assert begun[0][1].poll() is not None
        assert workers.start(_task(BlockRelaxation())) == 0


def _start_idle() -> tuple[Connection, subprocess.Popen]:
    """Starts a process that never reads."""
    ours, theirs = Pipe(duplex=True)
    with theirs:
        return ours, subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])


def test_a_problem_is_packed_once_for_all_workers(monkeypatch):
    packed: list[Graph] = []
    getstate = Graph.__getstate__
    monkeypatch.setattr(Graph, "__getstate__", lambda graph: packed.append(graph) or getstate(graph))
    monkeypatch.setattr(worker, "_start_process", _start_idle)
    task = _task(BlockRelaxation())
    with Workers() as workers:
        workers.start(task)
        workers.start(replace(task, seed=1))
        assert len(packed) == 1
        workers.start(_task(BlockRelaxation()))
        assert len(packed) == 2


def test_no_worker_is_started_after_the_time_limit(monkeypatch):
    monkeypatch.setattr(worker, "_start_process", lambda: pytest.fail("started after the time limit"))
    with Race(until_s=0.0, memory_limit_bytes=4 * _GIB) as race:
        race.start([Contestant(BlockRelaxation(), Problem(training_chain(12), 15), 0)])
        assert not race.running


def test_nobody_waits_for_a_worker_that_does_not_read_its_task(monkeypatch):
    ours, idle = _start_idle()
    monkeypatch.setattr(worker, "_start_process", lambda: (ours, idle))
    with Workers() as workers:
        workers.start(Task(BlockRelaxation(), Problem(training_chain(5000), 15), 20.0, 0, 4 * _GIB))
        assert len(workers) == 1
        assert idle.poll() is None
    assert idle.poll() is not None


def test_an_interrupt_while_workers_are_ended_leaves_none(monkeypatch):
    begun, end = [], worker._end
    monkeypatch.setattr(worker, "_start_process", lambda: begun.append(_start_idle()) or begun[-1])
    monkeypatch.setattr(worker, "_end", lambda *given: os.kill(os.getpid(), signal.SIGINT) or end(*given))

    def start_and_end() -> None:
        with Workers() as workers:
            workers.prepare(2)

    with pytest.raises(KeyboardInterrupt):
        start_and_end()
    assert [process.poll() is not None for _, process in begun] == [True, True]


def test_what_runs_beside_has_ended_when_an_interrupt_comes():
    begun, ended = threading.Event(), []

    def start_slowly() -> None:
        begun.set()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)  # while the other waits for the end of this
        time.sleep(0.1)
        ended.append("started")

    def search() -> None:
        with auto._run_beside(start_slowly):
            begun.wait()

    with pytest.raises(KeyboardInterrupt):
        search()
    assert ended == ["started"]
