"""Processes of the package: what they import, and that none outlives the one that started it."""

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkmate_tf.child_process import end_process, start_process
from tests.test_packaging import module_files

# Starts the process of sys.argv[2:], and waits.
PARENT = """
import sys, time
from checkmate_tf.child_process import start_process
sys.path.insert(0, sys.argv[1])
process = start_process(*sys.argv[3:], folder=sys.argv[2])
print(process.pid, flush=True)
time.sleep(1000)
"""
# Says that it runs, then sleeps in compiled code as solvers do, which lets no other thread of Python run.
BUSY = """
import ctypes
from pathlib import Path

def main(arguments):
    Path(arguments[0]).touch()
    ctypes.PyDLL(None).sleep(1000)
"""
IDLE = BUSY.replace("ctypes.PyDLL(None)", "__import__('time')")


def has_ended(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def wait_until(is_so) -> bool:
    for _ in range(3000):
        if is_so():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("has_folder", [False, True])
def test_a_process_ends_with_its_parent_and_leaves_no_folder(tmp_path, way, has_folder):
    (tmp_path / "task.py").write_text(IDLE if has_folder else BUSY)
    folder, begun = tmp_path / "folder", tmp_path / "begun"
    folder.mkdir()
    (folder / "data").write_text("of the step")
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(folder) if has_folder else "", "task", str(begun)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert wait_until(begun.exists)
    assert not has_ended(child)
    assert Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n"  # the first to go where memory runs out
    parent.send_signal(way)
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: has_ended(child))
    assert folder.exists() != has_folder


def test_a_process_that_is_to_go_on_does(tmp_path):
    (tmp_path / "task.py").write_text(BUSY)
    begun = tmp_path / "begun"
    parent = PARENT.replace("time.sleep(1000)", "").replace("folder=sys.argv[2]", "outlives=True")
    out = subprocess.run(
        [sys.executable, "-c", parent, str(tmp_path), "", "task", str(begun)], stdout=subprocess.PIPE, check=True
    ).stdout
    try:
        assert wait_until(begun.exists)
        assert not has_ended(int(out))
    finally:
        os.kill(int(out), signal.SIGKILL)


def test_a_process_whose_parent_is_gone_before_it_runs_ends_too(tmp_path):
    (tmp_path / "task.py").write_text(BUSY)
    begun = tmp_path / "begun"
    parent = PARENT.replace("time.sleep(1000)", "")
    out = subprocess.run(
        [sys.executable, "-c", parent, str(tmp_path), "", "task", str(begun)], stdout=subprocess.PIPE, check=True
    ).stdout
    assert wait_until(lambda: has_ended(int(out)))
    assert not begun.exists()


@pytest.mark.parametrize("entry", ["", "."])
def test_files_in_the_current_directory_are_not_run(tmp_path, monkeypatch, entry):
    marker, data, trusted = tmp_path / "marker", tmp_path / "data", tmp_path / "trusted"
    data.mkdir()
    trusted.mkdir()
    for name in ("numpy", "json", "sitecustomize", "checkmate_tf"):
        (data / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write({name!r})\n")
    (trusted / "task.py").write_text(
        "import json, numpy, checkmate_tf, sys\n"
        "def main(arguments):\n"
        "    json.dump([numpy.__file__, checkmate_tf.__file__], open(arguments[0], 'w'))\n"
    )
    monkeypatch.chdir(data)
    monkeypatch.syspath_prepend(str(trusted))
    monkeypatch.setattr(sys, "path", [entry, *sys.path])  # "" is there in an interactive session
    process = start_process("task", str(tmp_path / "found"))
    assert process.wait() == 0
    end_process(process)
    assert not marker.exists()
    assert str(data) not in (tmp_path / "found").read_text()


def test_a_process_does_not_find_what_it_is_to_be_without(tmp_path, monkeypatch):
    (tmp_path / "task.py").write_text(
        "from pathlib import Path\n"
        "def main(arguments):\n"
        "    try:\n"
        "        import wave\n"
        "    except ImportError:\n"
        "        wave = None\n"
        "    Path(arguments[0]).write_text(repr(wave))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    process = start_process("task", str(tmp_path / "found"), without=["wave"])
    assert process.wait() == 0
    end_process(process)
    assert (tmp_path / "found").read_text() == "None"


def test_an_interrupt_from_the_terminal_is_for_the_parent_alone(tmp_path, monkeypatch):
    (tmp_path / "task.py").write_text(IDLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    process = start_process("task", str(tmp_path / "begun"))
    try:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        assert end_process(process) == -signal.SIGKILL


def test_no_other_module_starts_processes():
    starts = {"Popen", "run", "call", "check_call", "check_output", "Process", "ProcessPoolExecutor", "system", "fork"}
    found = {
        name
        for name, path in module_files()
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(item, ast.Call)
        and isinstance(item.func, ast.Attribute)
        and isinstance(item.func.value, ast.Name)
        and item.func.value.id in ("subprocess", "multiprocessing", "concurrent", "os")
        and item.func.attr in starts
    }
    assert found == {"child_process"}
