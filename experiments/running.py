"""Runs what an experiment measures, keeps each result as soon as it is there, and goes on where it stopped.

Flat results are rows of one CSV file (`run_rows`, and `run_apart`, which computes each point in a process of its own);
nested ones are lines of one JSON-lines file (`run_points`), which tells the parts of an experiment apart. Either says
what was measured, on which machine and with which commit. A file is written whole beside the old one and then takes
its name, so that a run that is stopped leaves no broken file.

    python -m experiments.running MODULE:FUNCTION POINT

is such a process: it prints what the function of a module gives for a point, both in JSON.
"""

import argparse
import csv
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
RESULTS_FOLDER = ROOT / "experiments" / "results"
CHECKMATE = RESULTS_FOLDER / "checkmate.jsonl"  # of all the experiments of that paper
# Of every row that `run_apart` writes.
ENVIRONMENT = ("commit", "machine", "versions")
_PACKAGES = ("checkmate_tf", "numpy", "scipy", "highspy", "ortools", "keras", "tensorflow", "jax")

Point = dict[str, Any]
Row = dict[str, str]


@dataclass(frozen=True)
class Runner:
    """Where points are run.

    Args:
        workers: parallel processes.
        cluster: None for processes; "local" starts Ray on this machine; otherwise the address of a Ray cluster.
    """

    workers: int = 1
    cluster: str | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line options that `runner_of` reads."""
    parser.add_argument("--workers", type=int, default=2, help="parallel processes")
    parser.add_argument("--cluster", metavar="ADDRESS", help='run on Ray: "local", or the address of a cluster')


def runner_of(arguments: argparse.Namespace) -> Runner:
    return Runner(arguments.workers, arguments.cluster)


def run_points(
    points: Iterable[Point],
    compute: Callable[[Point], Any],
    results_path: Path,
    *,
    part: str = "",
    runner: Runner | None = None,
) -> list[dict[str, Any]]:
    """Runs the points that a JSON-lines file lacks, and gives [{"point", "result"}] of all in the order of `points`.

    Args:
        compute: gives the result of a point; it must be importable by name from a module.
        part: of the experiment, which tells apart what its commands measure.
    """
    points = list(points)
    known = {_key(entry["point"]): entry for entry in read_points(results_path, part)}
    missing = [point for point in points if _key(point) not in known]
    for point, result in tqdm(_computed(missing, compute, runner or Runner()), total=len(missing), disable=not missing):
        keep_point(results_path, part, point, result)
        known[_key(point)] = {"point": point, "result": result}
    return [known[_key(point)] for point in points]


def read_points(path: Path, part: str = "") -> list[dict[str, Any]]:
    """[{"point", "result"}] of a part of an experiment, sorted by what the points say; none where there is no file."""
    entries = [entry for entry in read_lines(path) if entry["part"] == part]
    return sorted(entries, key=lambda entry: _key(entry["point"]))


def in_order(entries: Iterable[dict[str, Any]], **orders: Sequence[Any]) -> list[dict[str, Any]]:
    """Entries by the order that is given for each key of their points; those with another value are left out."""
    found = [entry for entry in entries if all(entry["point"][key] in order for key, order in orders.items())]
    return sorted(found, key=lambda entry: [order.index(entry["point"][key]) for key, order in orders.items()])


def keep_point(path: Path, part: str, point: Point, result: Any) -> None:
    """Writes a result down; what was known of the same point goes."""
    others = [entry for entry in read_lines(path) if (entry["part"], entry["point"]) != (part, point)]
    new = {"part": part, "point": point, "result": result, "environment": environment()}
    write_lines(path, [*others, new])


def read_lines(path: Path) -> list[Any]:
    """What the lines of a JSON-lines file say, nothing where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write_lines(path: Path, entries: Iterable[Any]) -> None:
    write_text(path, "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries))


def run_rows(
    points: Iterable[Point],
    measure: Callable[[Point], dict[str, Any] | list[dict[str, Any]]],
    path: Path,
    columns: Sequence[str],
    *,
    jobs: int = 1,
    digits: int | None = None,
    beforehand: Callable[[Point, Any], None] | None = None,
) -> list[Row]:
    """Measures the points that a CSV file lacks, appends a row for each or several, and gives all rows.

    A point names columns and what they hold; where a row holds all of that, the point is known. `measure` starts a
    process of its own where it needs one: `jobs` threads call it. Floats are written to so many significant digits.
    `beforehand` gets point and result before the row is written, to keep elsewhere what is no cell of a table.
    """
    known = read_rows(path)
    missing = [point for point in points if not any(_is_row_of(row, point, digits) for row in known)]
    with ThreadPoolExecutor(jobs) as pool:
        for point, found in _as_completed(pool, missing, measure):
            if beforehand is not None:
                beforehand(point, found)
            rows = found if isinstance(found, list) else [found]
            _append_rows(path, columns, [{**row, **point} for row in rows], digits)
    return read_rows(path)


def run_apart(
    module: str,
    points: Iterable[Point],
    path: Path,
    columns: Sequence[str],
    *,
    settings: Mapping[str, Any] | None = None,
) -> list[Row]:
    """Computes the points that a CSV file lacks, each in a process of its own, and gives all rows.

    `compute(point)` of the module gives a row or several, as JSON can hold them; `settings` are what it finds in the
    point beside what names a row. The file gets `columns`, an `error` and the environment. A process that fails is a
    result, too: its row says the error.
    """

    def measure(point: Point) -> list[dict[str, Any]]:
        started = time.perf_counter()
        try:
            found = computed_apart(f"{module}:compute", {**(settings or {}), **point})
        except ProcessError as error:
            found = {"error": str(error)}
        rows = found if isinstance(found, list) else [found]
        errors = [row["error"] for row in rows if row.get("error")]
        print(*point.values(), f"{time.perf_counter() - started:.0f} s", *errors, file=sys.stderr, flush=True)
        return [{**row, **environment_cells()} for row in rows]

    return run_rows(points, measure, path, all_columns(columns), digits=6)


def all_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Those of a file of `run_apart`."""
    return (*columns, "error", *ENVIRONMENT)


class ProcessError(Exception):
    """A process that computed a point failed; the message is the last line of what it said."""


def computed_apart(function: str, point: Point, variables: Mapping[str, str] | None = None) -> Any:
    """What a function, "package.module:name", gives for a point in a process of its own.

    oneDNN is on there: TensorFlow's allocator on a CPU keeps statistics only then.
    """
    command = [sys.executable, "-m", "experiments.running", function, json.dumps(point)]
    own = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **(variables or {})}
    done = subprocess.run(command, cwd=ROOT, env=os.environ | own, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise ProcessError(lines[-1][:300])
    return json.loads(done.stdout.splitlines()[-1])


def read_rows(path: Path) -> list[Row]:
    """The rows of a CSV file as text, none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, columns: Sequence[str], values: Mapping[str, Any], *, digits: int | None = None) -> None:
    """Adds a row; a column that `values` does not tell is left empty."""
    _append_rows(path, columns, [values], digits)


def _append_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], digits: int | None) -> None:
    new = [{column: _cell(values.get(column), digits) for column in columns} for values in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*read_rows(path), *new])
    write_text(path, text.getvalue())


def _cell(value: Any, digits: int | None) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}g}" if digits is not None and isinstance(value, float) else str(value)


def _is_row_of(row: Row, point: Point, digits: int | None) -> bool:
    return all(row[column] == _cell(value, digits) for column, value in point.items())


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def environment() -> dict[str, Any]:
    """What an experiment ran on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": ", ".join([_processor(), f"{os.cpu_count()} cores", *_gpus(), platform.system()]),
        "versions": dict(_versions()),
    }


def environment_cells() -> dict[str, str]:
    """The same as the cells of a row."""
    found = environment()
    versions = {**found["versions"], "python": found["python"]}
    return {
        "commit": found["commit"][:12],
        "machine": found["machine"],
        "versions": " ".join(f"{package} {number}" for package, number in versions.items()),
    }


def made_with(rows: Iterable[Row]) -> str:
    """The environments of rows, for a page: each once, as a list in markdown."""
    found = sorted(
        {(row["machine"], f"commit {row['commit']}" if row["commit"] else "", row["versions"]) for row in rows}
    )
    names = ("machine", "commit", "versions")
    lines = [
        "- " + "; ".join(text or f"{name} not recorded" for name, text in zip(names, texts, strict=True))
        for texts in found
    ]
    return "\n".join(["Measured with:", "", *lines])


@cache
def _processor() -> str:
    try:
        names = re.findall(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        names = []
    return names[0].strip() if names else platform.processor() or platform.machine()


@cache
def _gpus() -> tuple[str, ...]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return tuple(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines())
    except (OSError, subprocess.CalledProcessError):
        return ()


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


def _computed(points: list[Point], compute: Callable[[Point], Any], runner: Runner) -> Iterator[tuple[Point, Any]]:
    if runner.cluster is not None:
        yield from _computed_by_ray(points, compute, runner)
    elif runner.workers <= 1:
        yield from ((point, compute(point)) for point in points)
    else:
        with ProcessPoolExecutor(runner.workers) as pool:
            yield from _as_completed(pool, points, compute)


def _as_completed(pool: Executor, points: list[Point], compute: Callable[[Point], Any]) -> Iterator[tuple[Point, Any]]:
    futures = {pool.submit(compute, point): point for point in points}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:  # a failure or an interruption leaves the points that have not begun
        pool.shutdown(wait=False, cancel_futures=True)


def _computed_by_ray(
    points: list[Point], compute: Callable[[Point], Any], runner: Runner
) -> Iterator[tuple[Point, Any]]:
    import ray

    local = runner.cluster == "local"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ray.init(
        address=None if local else runner.cluster,
        num_cpus=runner.workers if local else None,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    try:
        remote = ray.remote(compute)
        running = {remote.remote(point): point for point in points}
        while running:
            (finished,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(finished), ray.get(finished)
    finally:
        ray.shutdown()


def _key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


@contextmanager
def forget_plans() -> Iterator[None]:
    """Keeps each plan in a folder of its own within the block, so that what is measured is planned there."""
    from checkmate_tf.planning import plan_cache

    get_default_folder = plan_cache.get_default_folder
    with tempfile.TemporaryDirectory() as folder:
        plan_cache.get_default_folder = lambda: Path(tempfile.mkdtemp(dir=folder))
        try:
            yield
        finally:
            plan_cache.get_default_folder = get_default_folder


def main() -> None:
    """Computes one point and prints the result."""
    function, point = sys.argv[1:]
    module, _, name = function.partition(":")
    with forget_plans():
        result = getattr(import_module(module), name)(json.loads(point))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
