"""Runs solvers in processes of their own, so that a crash, a lack of memory or an overrun affects only that process.

A worker is a new Python that calls `main` here, not a `multiprocessing` child. Such a child imports the caller's main
script again, and a training script would train again. A worker communicates over a pair of pipes and ends with its
parent.
"""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler

from checkmate_tf.budget import format_bytes
from checkmate_tf.child_process import end_process, start_process
from checkmate_tf.interrupts import hold_interrupts
from checkmate_tf.process_memory import find_peak_bytes
from checkmate_tf.solvers.base import Result, Solver
from checkmate_tf.solvers.loading import load
from checkmate_tf.solvers.portfolio.settings import SETTINGS
from checkmate_tf.solvers.problem import Problem
from checkmate_tf.solvers.search import Search, Update

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Task:
    """A solver to run in a worker.

    Args:
        time_limit_s: limit of the time since `made_s`, a time of `time.time()`, which includes the start of the
            process.
        memory_limit_bytes: limit of the worker's address space. Beyond it, the worker fails, and nothing else.
    """

    solver: Solver
    problem: Problem
    time_limit_s: float
    seed: int
    memory_limit_bytes: int
    made_s: float = field(default_factory=time.time)

    @property
    def remaining_s(self) -> float:
        return max(self.made_s + self.time_limit_s - time.time(), SETTINGS.least_task_s)


@dataclass(frozen=True)
class Message:
    """A message from a worker: an `update` while it runs, and its `result`, or the `error` that ended it, at the end.

    `ready` asks for an update. A worker gets one at a time, so that sending never blocks on a busy one. `died` means
    that the process itself ended without a message, so the same task may succeed in another process.
    """

    worker: int
    update: Update | None = None
    ready: bool = False
    result: Result | None = None
    error: str | None = None
    died: bool = False


@dataclass
class Workers:
    """Running workers; a context manager that ends them all.

    `peak_memory_bytes` is the most memory that one of them has held, 0 if the system does not report it.
    """

    peak_memory_bytes: int = 0

    _running: dict[Connection, tuple[int, subprocess.Popen, float]] = field(default_factory=dict)
    _started: int = 0
    _ready: set[int] = field(default_factory=set)
    _waiting: dict[int, Update] = field(default_factory=dict)
    _spare: list[tuple[Connection, subprocess.Popen]] = field(default_factory=list)
    _senders: dict[Connection, threading.Thread] = field(default_factory=dict)
    _packed: tuple[Problem, bytes] | None = None  # the last one sent, because packing a large graph takes a second

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        with hold_interrupts():
            for connection in list(self._running):
                self._end(connection)
            for connection, process in self._spare:
                _end(connection, process)
            self._spare.clear()

    def __len__(self) -> int:
        return len(self._running)

    def prepare(self, count: int) -> None:
        """Starts processes that wait for a task, because their start takes a second or more.

        Raises OSError if processes cannot be started.
        """
        for _ in range(count):
            self._spare.append(_start_process())

    def start(self, task: Task) -> int:
        """Starts a worker and returns its number. Raises OSError if processes or threads cannot be started.

        A thread sends the task, because a process may take seconds until it reads it.
        """
        ours, process = self._spare.pop() if self._spare else _start_process()
        try:
            message = ForkingPickler.dumps({**vars(task), "problem": self._pack(task.problem)})
            sender = threading.Thread(target=_send, args=(ours, bytes(message)), daemon=True)
            sender.start()
        except BaseException as error:
            _end(ours, process)
            if isinstance(error, RuntimeError):  # Python raises this if no more threads can be started.
                raise OSError(str(error)) from error
            raise
        self._senders[ours] = sender
        number = self._started
        self._started += 1
        self._running[ours] = (number, process, time.perf_counter() + task.time_limit_s + SETTINGS.overrun_s)
        return number

    def _pack(self, problem: Problem) -> bytes:
        if self._packed is None or self._packed[0] is not problem:
            self._packed = problem, bytes(ForkingPickler.dumps(problem))
        return self._packed[1]

    def tell(self, update: Update, *, but: int | None = None) -> None:
        """Passes an update to every worker except one, as soon as each asks for it. The latest update counts."""
        for number, _, _ in self._running.values():
            if number != but:
                self._waiting[number] = update
        self._pass_on()

    def _pass_on(self) -> None:
        for connection, (number, _, _) in self._running.items():
            if number in self._ready and number in self._waiting:
                self._ready.discard(number)
                with contextlib.suppress(OSError):
                    connection.send(self._waiting.pop(number))

    def messages(self, timeout_s: float) -> list[Message]:
        """Returns the messages that arrive within the time. A worker that died or overran ends and reports an error."""
        received = []
        ready = set(wait(list(self._running), timeout_s))
        for connection in [connection for connection in self._running if connection in ready]:
            number = self._running[connection][0]
            try:
                received.append(Message(number, **connection.recv()))
            except (EOFError, OSError):
                code = self._end(connection)
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
                received.append(Message(number, error=how, died=True))
                continue
            self._look_at_memory(connection)
            if received[-1].ready:
                self._ready.add(received.pop().worker)
            elif received[-1].update is None:
                self._end(connection)
        self._pass_on()
        for connection, (number, _, until) in list(self._running.items()):
            if time.perf_counter() > until:
                self._end(connection)
                received.append(Message(number, error="overran its time limit"))
        return received

    def _look_at_memory(self, connection: Connection) -> None:
        found = find_peak_bytes(self._running[connection][1].pid)
        self.peak_memory_bytes = max(self.peak_memory_bytes, found or 0)

    def _end(self, connection: Connection) -> int:
        self._look_at_memory(connection)
        _, process, _ = self._running.pop(connection)
        sender = self._senders.pop(connection)
        if sender.is_alive():  # The worker has not read its task yet.
            process.kill()
            sender.join()
        return _end(connection, process)


def _send(connection: Connection, task: bytes) -> None:
    with contextlib.suppress(OSError):  # `messages` reports a worker that has died.
        connection.send_bytes(task)


def _start_process() -> tuple[Connection, subprocess.Popen]:
    ours, theirs = Pipe(duplex=True)
    with theirs:
        descriptor = theirs.fileno()
        process = start_process(__name__, str(descriptor), pass_fds=[descriptor], environment=_ONE_THREAD)
    return ours, process


def _end(connection: Connection, process: subprocess.Popen) -> int:
    connection.close()
    return end_process(process, patience_s=SETTINGS.exit_s)


class _PipeSearch(Search):
    """A search in a worker, which reports to the parent process and receives its updates."""

    def __init__(self, task: Task, connection: Connection) -> None:
        super().__init__(task.problem, task.remaining_s, task.seed)
        self._connection = connection
        self._asked = False

    def send(self, update: Update) -> None:
        self._connection.send({"update": update})

    def poll(self) -> Update | None:
        update = None
        if self._asked and self._connection.poll():
            update = self._connection.recv()
            self._asked = False
        if not self._asked:
            self._connection.send({"ready": True})
            self._asked = True
        return update


def _limit_memory(limit_bytes: int) -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def _search(task: Task, connection: Connection) -> Result:
    if task.solver.shares:
        return task.solver.search(_PipeSearch(task, connection))
    return task.solver.search(Search(task.problem, task.remaining_s, task.seed))


def main(arguments: Iterable[str]) -> None:
    """Runs the task that arrives at the file descriptor of the first argument."""
    connection = Connection(int(next(iter(arguments))))
    if not connection.poll():  # The process was prepared before its task is known.
        load("portfolio.auto")
    try:
        message = connection.recv()
        task = Task(**{**message, "problem": ForkingPickler.loads(message["problem"])})
        _limit_memory(task.memory_limit_bytes)
        connection.send({"result": _search(task, connection)})
    except MemoryError:
        limit = format_bytes(task.memory_limit_bytes)
        connection.send({"error": f"ran out of its {limit} of memory, which Auto(memory_limit_bytes=...) sets"})
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        connection.send({"error": f"{type(error).__name__}: {error}"})
