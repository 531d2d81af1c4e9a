"""Builds the sdist and the wheel, and tries the wheel as its users will: in fresh environments, outside the repository.

Every Python that setup.cfg names gets an environment with the wheel, its dependencies and mypy, and nothing else. A
user's steps are tried in it, one after the other. Pythons that are not installed are left out; give those that PATH
does not have as arguments:

    python .ci/release_check.py /opt/python3.12/bin/python /opt/python3.13/bin/python
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compat import find_pythons

ROOT = Path(__file__).resolve().parents[1]
_IMPORT = """
import sys, checkmate_tf
assert "site-packages" in checkmate_tf.__file__, checkmate_tf.__file__
assert not {"tensorflow", "numpy"} & sys.modules.keys()
print(checkmate_tf.__version__)
"""
_GRAPH = """
from checkmate_tf import Graph, Node, Value, save_graph
forward = [Node(f"f{i}", "Relu", inputs=(i - 1,) if i else (), outputs=(i,), cost=2) for i in range(9)]
reads = lambda i: (7 - i, 8 + i) if i else (7, 8)
backward = [Node(f"b{i}", "ReluGrad", inputs=reads(i), outputs=(9 + i,), cost=4, is_backward=True) for i in range(8)]
values = [Value(f"v{i}", 2**20) for i in range(17)]
save_graph(Graph((*forward, *backward), tuple(values), outputs=(16,)), "graph.json")
"""
_DEMO = """
from checkmate_tf.demo import make_tasks, run_task
task = next(make_tasks(image_size=32, num_batches=3))
stock, rematerialized = run_task(task, ["60%"], time_limit_s=4.0)
assert rematerialized.measured_peak_bytes < 0.8 * stock.measured_peak_bytes
assert rematerialized.weight_difference < 1e-3
rematerialized.plan.to_html("plan.html")
"""


@dataclass(frozen=True)
class Step:
    """A step is a command of a user: it must succeed, and print the text `shown`."""

    name: str
    command: tuple[str, ...]
    shown: str = ""


def main() -> int:
    """Returns 1 where a file cannot be built, or a step fails on a Python."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("build", "checkmate_tf.egg-info"):
            shutil.rmtree(ROOT / name, ignore_errors=True)  # files that were removed since would come along
        run = subprocess.run([sys.executable, "-m", "build", "--outdir", folder, str(ROOT)], **_QUIET)
        if run.returncode:
            print(run.stdout, run.stderr)
            return 1
        built = sorted(Path(folder).iterdir())
        for path in built:
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
        if subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=False).returncode:
            return 1
        wheel = next(path for path in built if path.suffix == ".whl")
        results = [try_wheel(wheel, python) for python in find_pythons(sys.argv[1:])]
    return int(not results or not all(results))


_QUIET = {"capture_output": True, "text": True, "check": False}


def try_wheel(wheel: Path, python: str) -> bool:
    """Installs a wheel in a fresh environment and tries it; says of each step in a line whether it succeeds."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", f"{folder}/environment"], check=True)
        bin_folder = f"{folder}/environment/bin"
        install = [f"{bin_folder}/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*install, "--no-compile", str(wheel), "mypy"], check=False).returncode:
            print(f"{python}: the wheel cannot be installed", flush=True)
            return False
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        Path(folder, "script.py").write_text(_read_script(), encoding="utf-8")
        for step in list_steps(bin_folder):
            run = subprocess.run(step.command, cwd=folder, env=environment, **_QUIET)
            succeeds = run.returncode == 0 and step.shown in run.stdout
            print(f"{python}: {step.name} {'succeeds' if succeeds else 'fails'}", flush=True)
            if not succeeds:
                print(run.stdout[-2000:], run.stderr[-2000:], flush=True)
                return False
    return True


def list_steps(bin_folder: str) -> Iterator[Step]:
    """Lists the steps to try in an environment whose programs are in `bin_folder`."""
    python, command = f"{bin_folder}/python", f"{bin_folder}/checkmate-tf"
    yield Step("import", (python, "-c", _IMPORT))
    yield Step("the command", (command, "--help"), "usage: checkmate-tf")
    yield Step("a graph", (python, "-c", _GRAPH))
    yield Step("solve", (command, "solve", "graph.json", "--budget", "60%", "--time-limit", "5"), "OPTIMAL")
    yield Step("types", (python, "-m", "mypy", "--strict", "--ignore-missing-imports", "script.py"), "Success")
    yield Step("training", (python, "-c", _DEMO))


def _read_script() -> str:
    """Reads the script of tests/test_typing.py."""
    tree = ast.parse((ROOT / "tests" / "test_typing.py").read_text(encoding="utf-8"))
    assigned = [item for item in tree.body if isinstance(item, ast.Assign)]
    return next(ast.literal_eval(item.value) for item in assigned if ast.unparse(item.targets[0]) == "SCRIPT")


if __name__ == "__main__":
    sys.exit(main())
