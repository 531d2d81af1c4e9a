"""Runs the points of an experiment: in parallel processes or on a Ray cluster, restarting where it stopped.

A point is a JSON object; its result is one too. Results are written after every point, with seed, commit, versions and
machine, and a point that is already there is not run again.
"""

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
RESULTS_FOLDER = ROOT / "experiments" / "results"
_PACKAGES = ("checkmate_tf", "numpy", "scipy", "highspy", "ortools", "keras", "tensorflow")

Point = dict[str, Any]


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
    points: Iterable[Point], compute: Callable[[Point], Any], results_path: Path, *, runner: Runner | None = None
) -> list[dict[str, Any]]:
    """[{"point", "result"}] in the order of `points`; `compute` must be importable by name from a module."""
    points = list(points)
    known = _read(results_path)
    missing = [point for point in points if _key(point) not in known]
    for point, result in tqdm(_computed(missing, compute, runner or Runner()), total=len(missing), disable=not missing):
        known[_key(point)] = {"point": point, "result": result}
        _write(results_path, known)
    return [known[_key(point)] for point in points]


def environment() -> dict[str, Any]:
    """What an experiment ran on."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": dict(_versions()),
    }


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
            futures = {pool.submit(compute, point): point for point in points}
            for future in as_completed(futures):
                yield futures[future], future.result()


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


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    return {_key(entry["point"]): entry for entry in json.loads(path.read_text())["points"]}


def _write(path: Path, known: dict[str, dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [known[key] for key in sorted(known)]
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"environment": environment(), "points": entries}, indent=1) + "\n")
    partial.replace(path)
