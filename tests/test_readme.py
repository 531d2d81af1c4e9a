"""README says what is so: its example runs and prints what is shown, and the solvers and commands named exist."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checkmate_tf.cli import COMMANDS

DIGESTS = Path(__file__).parent / "solvers" / "digests.json"
ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 900


def test_table_has_every_solver() -> None:
    """All whose schedules are recorded; a new one is, once it is done."""
    table = (ROOT / "docs" / "solvers.md").read_text(encoding="utf-8").partition("## All solvers")[2]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == {
        case.partition(" ")[0] for case in json.loads(DIGESTS.read_text(encoding="utf-8"))["digests"]
    }


def test_commands_exist() -> None:
    written = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
    named = set(re.findall(r"^checkmate-tf ([a-z-]+)|`checkmate-tf ([a-z-]+) ", written, flags=re.MULTILINE))
    assert {"plan", "solve"} < {first or second for first, second in named} <= set(COMMANDS)


def test_is_short() -> None:
    assert len(TEXT.split()) <= MOST_WORDS


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
    if not smaller:
        shown = TEXT.partition("It prints")[2].split("```")[1].lstrip("\n")
        head = shown.partition("\n  conv2d")[0]  # the costliest recomputations are those of this machine
        assert leave_out_figures(run.stdout).startswith(leave_out_figures(head))


def leave_out_figures(text: str) -> str:
    """Replaces figures, their units and what aligns them.

    The sentences on a step's results and time, and on the solver's proof, depend on the machine. They are left out.
    """
    text = re.sub(r"(One|Its fastest) step .*\n|(?<=Solver auto).*", "", text)
    return re.sub(r"[ -]{2,}", " ", re.sub(r"[\d.]+(%| [KMG]?i?B)?", "#", text))
