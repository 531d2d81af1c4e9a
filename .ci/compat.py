"""Tries the releases that setup.cfg allows, each in a fresh environment, and prints which pass.

Every TensorFlow is tried with the oldest Python and the newest Keras, the oldest TensorFlow also with the oldest Keras,
and the newest of both with every Python. The tests are a short selection that plans, trains and compares numbers. An
environment takes 2 to 4 GB while it is tried. Pythons that are not installed are left out; give those that PATH does
not have as arguments:

    python .ci/compat.py /opt/python3.12/bin/python /opt/python3.13/bin/python
"""

import configparser
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIED = ("tensorflow", "keras")
NEEDED = ("hypothesis", "networkx", "pytest", "pytest-timeout")
TESTS = (
    "tests/test_private_names.py",
    "tests/test_simulator.py",
    "tests/solvers/test_contract.py",
    "tests/executors/graph/test_emission.py",
    "tests/training/test_training.py::test_gradients_of_one_step",
    "tests/training/test_training.py::test_several_batch_sizes_side_by_side",
    "tests/training/test_training.py::test_save_load_clone_pickle",
    "tests/training/test_training.py::test_peak_within_budget",
    "tests/executors/xla/test_xla.py::test_gradients_equal_the_stock_step[conv_chain-cpu]",
)
_PRINT_VERSIONS = (
    "import json, platform; from importlib.metadata import version;"
    f"print(json.dumps([platform.python_version(), *map(version, {TRIED})]))"
)


@dataclass(frozen=True)
class Trial:
    """A trial is one environment: a Python, and the releases that pip is told to take; none for the newest."""

    python: str
    pins: tuple[str, ...] = ()


def main() -> int:
    """Returns 1 where a release that setup.cfg allows does not hold, or no Python was found."""
    trials = list(list_trials(find_pythons(sys.argv[1:]), _read_setup()["options"]["install_requires"]))
    results = [try_releases(trial) for trial in trials]
    return int(not results or not all(results))


def _read_setup() -> configparser.ConfigParser:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def find_pythons(given: list[str]) -> list[str]:
    """Finds the Pythons that setup.cfg names, from the oldest to the newest, and prints which are not installed."""
    versions = re.findall(r"Python :: (3\.\d+)", _read_setup()["metadata"]["classifiers"])
    pythons = {version: find_python(version, given) for version in versions}
    for version in [version for version, python in pythons.items() if python is None]:
        print(f"Python {version} is not installed: left out")
    return [python for python in pythons.values() if python is not None]


def find_python(version: str, given: list[str]) -> str | None:
    """Finds a Python of a version among those given, and then by its name."""
    for python in (*given, f"python{version}", "python3"):
        command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            continue
        if run.stdout.strip() == version:
            return python
    return None


def list_trials(pythons: list[str], requirements: str) -> Iterator[Trial]:
    """Lists the environments to try, for Pythons from the oldest to the newest."""
    oldest = dict(re.findall(r"^([\w-]+) >=([\d.]+)", requirements, re.MULTILINE))
    first, end = (int(minor) for minor in re.findall(r"^tensorflow >=2\.(\d+),<2\.(\d+)", requirements, re.M)[0])
    for python in pythons:
        if python == pythons[0]:
            yield Trial(python, (f"tensorflow==2.{first}.*", f"keras=={oldest['keras']}.*"))
            yield from (Trial(python, (f"tensorflow==2.{minor}.*",)) for minor in range(first, end - 1))
        yield Trial(python)


def try_releases(trial: Trial) -> bool:
    """Makes an environment, runs the tests in it, and says in one line whether they pass."""
    with tempfile.TemporaryDirectory() as folder:
        python = f"{folder}/bin/python"
        subprocess.run([trial.python, "-m", "venv", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        installed = subprocess.run([*install, "--editable", str(ROOT), *NEEDED, *trial.pins], check=False)
        if installed.returncode:
            print(f"cannot be installed: {trial.python} {' '.join(trial.pins)}", flush=True)
            return False
        found = json.loads(subprocess.run([python, "-c", _PRINT_VERSIONS], capture_output=True, check=True).stdout)
        releases = " ".join(f"{name} {number}" for name, number in zip(("python", *TRIED), found, strict=True))
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    holds = run.returncode == 0
    failed = re.findall(r"^(?:FAILED|ERROR) .*", run.stdout, re.MULTILINE)
    print(f"{'holds' if holds else 'fails'}: {releases}", *failed, sep="\n  ", flush=True)
    if not holds and not failed:
        print(run.stdout[-2000:], run.stderr[-2000:])
    return holds


if __name__ == "__main__":
    sys.exit(main())
