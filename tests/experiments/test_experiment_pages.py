"""Every generated page of the experiments' results is what its data give."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.pages import NEED_TENSORFLOW, PAGES, is_current, text_of
from experiments.running import RESULTS_FOLDER

WITHOUT_TENSORFLOW = [name for name in PAGES if name not in NEED_TENSORFLOW]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_its_data_give(name: str) -> None:
    assert (RESULTS_FOLDER / name).read_text() == text_of(name), f"python -m experiments.pages {name}"


def test_a_page_edited_by_hand_is_seen(tmp_path: Path) -> None:
    name = "peers.md"
    edited = tmp_path / name
    assert not is_current(name, tmp_path)
    edited.write_text(text_of(name))
    assert is_current(name, tmp_path)
    edited.write_text(edited.read_text().replace("1", "2", 1))
    assert not is_current(name, tmp_path)


def test_check_needs_no_tensorflow() -> None:
    code = "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
    code += "from experiments.pages import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--check", *WITHOUT_TENSORFLOW], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_every_page_is_generated() -> None:
    assert {str(path.relative_to(RESULTS_FOLDER)) for path in RESULTS_FOLDER.rglob("*.md")} == set(PAGES)


def test_every_picture_is_shown() -> None:
    shown = "".join(map(text_of, WITHOUT_TENSORFLOW))
    for path in RESULTS_FOLDER.rglob("*.png"):
        assert f"({path.relative_to(RESULTS_FOLDER)})" in shown, path
