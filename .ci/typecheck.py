"""Runs mypy over every file of the installed package's layout, and over the experiments.

From the repository root mypy would look for checkmate_tf.profiling and checkmate_tf.solvers below checkmate_tf/,
not find them, and check next to nothing without a word. So it gets a tree of symbolic links laid out as
setup.cfg's package_dir installs them, and has to say that it checked every file.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def lay_out_package(folder: str | Path) -> None:
    """Lays out the package in a folder as it is installed there."""
    package = Path(folder) / "checkmate_tf"
    package.mkdir()
    for source in (ROOT / "checkmate_tf").iterdir():
        (package / source.name).symlink_to(source)
    for name in ("profiling", "solvers"):
        (package / name).symlink_to(ROOT / name)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        lay_out_package(folder)
        (Path(folder) / "experiments").symlink_to(ROOT / "experiments")
        command = [sys.executable, "-m", "mypy", "-p", "checkmate_tf", "-p", "experiments", "--explicit-package-bases"]
        command += [f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={ROOT / '.mypy_cache'}"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    print(result.stdout, result.stderr, sep="", end="")
    if result.returncode:
        return result.returncode
    rooms = ("checkmate_tf", "profiling", "solvers", "experiments")
    files = sum(1 for name in rooms for _ in (ROOT / name).rglob("*.py"))
    checked = re.search(r"no issues found in (\d+) source file", result.stdout)
    if checked is None or int(checked[1]) < files:  # mypy also counts folders without an __init__.py
        print(f"mypy checked {checked[1] if checked else 'no'} files; the package has {files}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
