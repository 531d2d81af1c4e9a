"""README says what is so: its example runs, its solvers and commands exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkmate_tf.cli import COMMANDS

DIGESTS = Path(__file__).parent / "solvers" / "digests.json"
TEXT = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def test_table_has_every_solver() -> None:
    """All whose schedules are recorded; a new one is, once it is done."""
    table = TEXT.partition("## Solvers")[2].partition("## Limits")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {
        case.partition(" ")[0] for case in json.loads(DIGESTS.read_text(encoding="utf-8"))["digests"]
    }


def test_commands_exist() -> None:
    named = set(re.findall(r"^checkmate-tf ([a-z-]+)", TEXT, flags=re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)


@pytest.mark.parametrize(
    ("onednn", "smaller"),
    [
        ("1", {}),
        ("0", {"range(8)": "range(3)", "64, 64, 3": "16, 16, 3"}),  # the CPU's allocator then keeps no statistics
    ],
)
def test_first_example_runs(onednn: str, smaller: dict[str, str]) -> None:
    """As a new user runs it, in a process of its own: with the allocator's statistics, and without on a small model."""
    first, *_ = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    for written, instead in smaller.items():
        assert written in first
        first = first.replace(written, instead)
    check = "assert plan.predicted_peak_bytes <= plan.budget_bytes < plan.stock_peak_bytes"
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": onednn}
    run = subprocess.run(
        [sys.executable, "-c", f"{first}\n{check}"], capture_output=True, text=True, check=False, env=environment
    )
    assert run.returncode == 0, run.stderr
