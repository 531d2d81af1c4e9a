"""What planning leaves behind when it is interrupted or killed at random moments.

    python -m experiments.faults [--seeds 4] [--only interrupt ...]

Each row of the results is a fault, a seed (a process of its own), and the room of the package where the fault met it:

- interrupt: SIGINT comes at a random moment of `rematerialize`. Afterwards the model must train as one that was never
  planned, with the same losses and weights to the last bit, and no process, thread or file may be left.
- planning killed: SIGKILL at a random moment of `rematerialize` or `max_batch_size`. No process or file may be left.
- writer killed: SIGKILL at a random moment of writing to the profile cache. All that was written before must be there.

After each, the profile cache must be whole. `broken` counts what was not as it must be, and `what` says the first such
thing. `longest_s` is from the fault to its end.
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache
from experiments.running import RESULTS_FOLDER, ROOT, Point, run_apart

COLUMNS = ("fault", "seed", "where", "count", "broken", "longest_s", "what")
# How many times each process meets each fault.
FAULTS = {"interrupt": 50, "planning killed": 3, "writer killed": 250}
# How often a model is interrupted before it trains.
_INTERRUPTS_EACH = 5
_ENDED = "ended before"  # the interrupt came
_CACHE = "profiles.sqlite"
_KEY = DeviceKey("device", "tensorflow", "driver")
_STEPS = 3
_PATIENCE_S = 10.0
_MOST_WRITES_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="processes for each fault")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), help="these faults alone")
    parser.add_argument("--output", type=Path, default=RESULTS_FOLDER / "faults.csv")
    options = parser.parse_args()
    points = [{"fault": fault, "seed": seed} for fault in options.only for seed in range(options.seeds)]
    run_apart("experiments.faults", points, options.output, COLUMNS)


def compute(point: Point) -> list[dict[str, Any]]:
    meet = {"interrupt": _interrupt_planning, "planning killed": _kill_planning, "writer killed": _kill_writers}
    found = _Found()
    with tempfile.TemporaryDirectory() as folder:
        meet[point["fault"]](random.Random(point["seed"]), FAULTS[point["fault"]], Path(folder), found)
    return list(found.rows())


@dataclass
class _Found:
    """What was met, by room."""

    counts: dict[str, list[tuple[float, list[str]]]] = field(default_factory=dict)

    def add(self, where: str, seconds: float, broken: list[str]) -> None:
        self.counts.setdefault(where, []).append((seconds, broken))
        print(where, f"{seconds:.2f} s", *broken, file=sys.stderr, flush=True)

    def rows(self) -> Iterator[dict[str, Any]]:
        for where, met in sorted(self.counts.items()):
            broken = [what for _, each in met for what in each]
            yield {
                "where": where, "count": len(met), "broken": sum(bool(each) for _, each in met),
                "longest_s": max(seconds for seconds, _ in met), "what": broken[0] if broken else "",
            }  # fmt: skip


def _interrupt_planning(lot: random.Random, count: int, folder: Path, found: _Found) -> None:
    """Interrupts a model a few times, in each way of planning, and then trains it; and so on with new ones."""
    import keras

    from checkmate_tf import Options
    from checkmate_tf.profiling.costs import MeasuredCosts
    from checkmate_tf.solvers.portfolio.auto import Auto

    # Processes in the background are told to ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    make = lot.choice((_make_dense_net, _make_conv_net))
    reference = _train(make())
    tempfile.tempdir = str(folder / "temporary")
    Path(tempfile.tempdir).mkdir()
    cache = folder / "cache" / _CACHE
    ways = {
        "timed": Options(costs=MeasuredCosts(cache_path=cache)),
        "not timed": Options(costs="flops"),
        "in workers": Options(Auto(here_nodes=0, workers=2), costs="flops"),
    }
    longest_s: dict[str, float] = {}
    for first in range(0, count, _INTERRUPTS_EACH):
        model = make()
        for number in range(first, min(first + _INTERRUPTS_EACH, count)):
            way = list(ways)[number % len(ways)]
            if way not in longest_s:  # the first time tells how long it takes
                longest_s[way] = _plan_until(model, ways[way], float("inf"), cache).seconds
            met = _plan_until(model, ways[way], lot.uniform(0.0, longest_s[way]), cache)
            trained = _train(model) if number + 1 in (first + _INTERRUPTS_EACH, count) else reference
            differing = [name for name, value in reference.items() if trained[name] != value]
            met.broken.extend(f"trains otherwise: {name}" for name in differing)
            found.add(met.where, 0.0 if met.where == _ENDED else met.seconds, met.broken)
        keras.backend.clear_session()


@dataclass(frozen=True)
class _Met:
    where: str
    seconds: float
    broken: list[str]


def _plan_until(model: Any, options: Any, delay_s: float, cache: Path) -> _Met:
    """Plans until an interrupt comes after `delay_s`; tells where it came, and what is left."""
    import checkmate_tf
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.training.rematerialize import find_installed_step

    cache.unlink(missing_ok=True)
    num_threads = threading.active_count()
    began_s = time.perf_counter()
    fault = _Interrupt(delay_s)
    where, broken = _ENDED, []
    try:
        with fault:
            checkmate_tf.rematerialize(
                model, batch_size=256, budget="80%", time_limit_s=3.0, options=options, progress=False
            )
    except KeyboardInterrupt as error:
        where = _find_room(error) if find_installed_step(model) is None else where
    except InfeasibleBudgetError:
        pass
    seconds = time.perf_counter() - (fault.fired_s or began_s)
    if where == _ENDED and 0 < fault.fired_s < fault.ended_s:
        broken.append("the interrupt was swallowed")
    checkmate_tf.restore(model)
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        broken.append("another handler of SIGINT is left")
    broken += _wait_until_clean(lambda: _list_children(os.getpid()), "processes")
    broken += _wait_until_clean(lambda: [thread.name for thread in threading.enumerate()][num_threads:], "threads")
    broken += _wait_until_clean(lambda: os.listdir(tempfile.gettempdir()), "files")
    return _Met(where, seconds, broken + _check_cache(cache))


class _Interrupt:
    """Sends this process SIGINT after a time, unless the block has ended."""

    def __init__(self, delay_s: float) -> None:
        self.fired_s, self.ended_s = 0.0, 0.0
        self._timer = threading.Timer(min(delay_s, threading.TIMEOUT_MAX), self._fire)

    def _fire(self) -> None:
        self.fired_s = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self.ended_s = time.perf_counter()
        self._timer.cancel()
        self._timer.join()


def _find_room(error: BaseException) -> str:
    """The innermost room of the package that an exception passed."""
    files = [Path(frame.filename) for frame in traceback.extract_tb(error.__traceback__)]
    inside = [file.relative_to(ROOT).parts for file in files if file.is_relative_to(ROOT) and file.stem != "interrupts"]
    rooms = [parts for parts in inside if parts[0] in ("checkmate_tf", "solvers", "profiling")]
    return ["before it began", *(next(part for part in parts if part != "checkmate_tf") for parts in rooms)][-1]


def _make_dense_net() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    layers: list[Any] = [keras.Input((128,))]
    for _ in range(3):
        layers += [keras.layers.Dense(256, activation="relu"), keras.layers.BatchNormalization()]
    model = keras.Sequential([*layers, keras.layers.Dropout(0.2), keras.layers.Dense(1)], name="dense_net")
    model.compile("adam", "mse", metrics=["mae"], jit_compile=False)
    return model


def _make_conv_net() -> Any:
    import keras

    keras.utils.set_random_seed(2)
    layers: list[Any] = [keras.Input((12, 12, 3))]
    for _ in range(3):
        layers += [keras.layers.Conv2D(8, 3, padding="same"), keras.layers.LeakyReLU()]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(1)], name="conv_net")
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", jit_compile=False)
    return model


def _train(model: Any) -> dict[str, bytes]:
    """What a few steps of training report and leave."""
    import keras
    import numpy as np

    numbers = np.random.default_rng(0)
    found: dict[str, bytes] = {}
    for step in range(_STEPS):
        x = numbers.normal(size=(256, *model.input_shape[1:])).astype(np.float32)
        loss = model.train_on_batch(x, numbers.normal(size=(256, 1)).astype(np.float32))
        found[f"loss {step}"] = np.asarray(loss).tobytes()
    for index, variable in enumerate([*model.variables, *model.optimizer.variables]):
        found[f"variable {index}"] = np.asarray(keras.ops.convert_to_numpy(variable)).tobytes()
    return found


def _kill_planning(lot: random.Random, count: int, folder: Path, found: _Found) -> None:
    longest_s: dict[str, float] = {}
    for number in range(-2, count):
        # The first ones are not killed: they tell how long planning takes.
        what = ("rematerialize", "max_batch_size")[number % 2]
        home = folder / str(number)
        home.mkdir()
        temporary = home / "temporary"
        temporary.mkdir()
        point = json.dumps({"what": what, "cache": str(home / _CACHE)})
        command = [sys.executable, "-m", "experiments.running", "experiments.faults:plan", point]
        environment = os.environ | {"TMPDIR": str(temporary), "TF_ENABLE_ONEDNN_OPTS": "1"}
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # it begins to plan
        began_s = time.perf_counter()
        if number >= 0:
            time.sleep(lot.uniform(0.0, longest_s[what]))
            process.kill()
        process.wait()
        process.stdout.close()
        longest_s.setdefault(what, time.perf_counter() - began_s)
        killed_s = time.perf_counter()
        broken = _wait_until_clean(lambda temporary=temporary: _list_heirs(temporary), "processes")
        broken += _wait_until_clean(lambda temporary=temporary: os.listdir(temporary), "files")
        if number >= 0:
            found.add(what, time.perf_counter() - killed_s, broken + _check_cache(home / _CACHE))


def plan(point: Point) -> str:
    """Says that it begins, and plans."""
    import checkmate_tf
    from checkmate_tf.profiling.costs import MeasuredCosts
    from checkmate_tf.solvers.portfolio.auto import Auto

    model, costs = _make_dense_net(), MeasuredCosts(cache_path=point["cache"])
    print("begins", flush=True)
    if point["what"] == "rematerialize":
        solver = Auto(here_nodes=0, workers=2)
        checkmate_tf.rematerialize(
            model,
            batch_size=256,
            budget="80%",
            options=checkmate_tf.Options(solver=solver, costs=costs),
            time_limit_s=3.0,
        )
    else:
        checkmate_tf.max_batch_size(model, budget="60MiB", options=checkmate_tf.Options(costs=costs), time_limit_s=3.0)
    return "ended"


def _kill_writers(lot: random.Random, count: int, folder: Path, found: _Found) -> None:
    """Kills processes that only write; one cache in ten is new, so that they are also killed while they make it."""
    path = folder / _CACHE
    expected = 0
    for number in range(count):
        if number % 10 == 0:
            for file in folder.glob("*"):
                file.unlink()
            expected = 0
        ours, theirs = os.pipe()
        process = os.fork()
        if process == 0:
            _write_for_ever(path, theirs)
        os.close(theirs)
        time.sleep(lot.uniform(0.0, _MOST_WRITES_S))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        with open(ours) as told:
            expected = int((told.read().split() or [expected])[-1])
        journal = path.with_name(f"{_CACHE}-journal")
        where = "before it was made" if not path.exists() else "in a write" if journal.exists() else "between writes"
        began_s = time.perf_counter()
        broken = _check_cache(path)
        with ProfileCache(path) as cache:
            held = len(cache.load(_KEY))
        broken += (
            [] if held in (expected, expected + 1) else [f"{held} measurements are there, {expected} were written"]
        )
        expected = held
        found.add(where, time.perf_counter() - began_s, broken)


def _write_for_ever(path: Path, told: int) -> None:
    """Writes one measurement after the other, and tells how many are there."""
    with ProfileCache(path) as cache:
        number = len(cache.load(_KEY))
        while True:
            measurement = Measurement(str(number), "MatMul", 5.0, 0.01, 3, 64, 1.0)
            cache.get_or_measure(_KEY, str(number), lambda measurement=measurement: measurement)
            number += 1
            os.write(told, f"{number}\n".encode())


def _check_cache(path: Path) -> list[str]:
    """What is wrong with a profile cache: it must open without a warning, and sqlite must find it whole."""
    if not path.parent.exists():
        return []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ProfileCache(path) as cache:
            cache.count_by_device()
    broken = [str(warning.message) for warning in caught]
    with closing(sqlite3.connect(path)) as connection:
        (state,) = connection.execute("PRAGMA integrity_check").fetchone()
        # The next write takes away what a write that had not begun to change the file has left beside it.
        connection.execute("PRAGMA user_version = 2")
    broken += [] if state == "ok" else [state]
    broken += [file.name for file in path.parent.glob(f"{_CACHE}*") if file.name not in (_CACHE, f"{_CACHE}.lock")]
    return broken


def _wait_until_clean(list_left: Callable[[], list[str]], what: str) -> list[str]:
    """What is left after a while."""
    until_s = time.perf_counter() + _PATIENCE_S
    while list_left() and time.perf_counter() < until_s:
        time.sleep(0.05)
    left = list_left()
    return [f"{what} are left: {' '.join(left)}"] if left else []


def _list_children(process_id: int) -> list[str]:
    """The children of a process that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(") ")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if int(parent) == process_id and state != "Z":
            found.append(stat.parent.name)
    return found


def _list_heirs(temporary: Path) -> list[str]:
    """The processes that were told to keep temporary files in this folder."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = environment.read_bytes().split(b"\0")
        except OSError:
            continue
        if f"TMPDIR={temporary}".encode() in variables:
            found.append(environment.parent.name)
    return found


if __name__ == "__main__":
    main()
