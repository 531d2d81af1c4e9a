"""The command line: what it prints where, and its exit statuses."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from checkmate_tf import cli
from checkmate_tf.serialization import graph_to_json, load_schedule, save_graph
from checkmate_tf.simulator import simulate
from checkmate_tf.solvers import SOLVER_NAMES
from tests.graphs import graph_of, training_chain

# Three layers: 4 units hold everything (f0, f1, f2, loss and the first gradient: 5 at the peak); 3 is any node's need.
GRAPH = training_chain(3, size=1000)
STOCK_PEAK = 5000


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    path = tmp_path / "graph.json"
    save_graph(GRAPH, path)
    return str(path)


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_solve_writes_a_schedule(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "schedule.json"
    status, out, err = run(
        "solve", graph_file, "--budget", "80%", "--solver", "exhaustive", "--output", str(output), capsys=capsys
    )
    assert (status, err) == (0, "")
    assert "OPTIMAL" in out
    simulation = simulate(GRAPH, load_schedule(output))
    assert simulation.peak_bytes == 4000
    assert f"{simulation.overhead:.2%}".replace("%", " %") in out


def test_solve_prints_one_json_object(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run("solve", graph_file, "--budget", "4000", "--solver", "exhaustive", "--json", capsys=capsys)
    assert (status, err) == (0, "")
    data = json.loads(out)
    assert data["format"] == "checkmate-schedule/1"
    assert (data["budget_bytes"], data["baseline_peak_bytes"], data["least_budget_bytes"]) == (4000, STOCK_PEAK, None)
    assert (data["peak_bytes"], data["status"], data["solver"]) == (4000, "OPTIMAL", "exhaustive")
    assert out.count("\n") == 1


def test_solve_lists_improvements(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("solve", graph_file, "--budget", "4000", "--solver", "moccasin", "--json", capsys=capsys)
    data = json.loads(out)
    last = data["progress"][-1]
    assert (last["cost"], last["peak_bytes"]) == (data["cost"], data["peak_bytes"])
    assert last["cost_lower_bound"] == data["cost_lower_bound"]


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_infeasible_budget_is_status_3(
    graph_file: str, json_flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("solve", graph_file, "--budget", "2KB", "--time-limit", "5", *json_flag)
    status, out, err = run(*arguments, capsys=capsys)
    assert status == 3
    assert err.count("\n") == 1
    assert "needs at least" in err
    assert "least budget known to work" in err
    assert "INFEASIBLE" in out
    if json_flag:
        known_bytes = json.loads(out)["least_budget_bytes"]
        assert f"({known_bytes} bytes)" in err
        assert run("solve", graph_file, "--budget", str(known_bytes), capsys=capsys)[0] == 0


NASTY = "conv\x1b]0;owned\x07\x9b2J\ud800\u202e" + "x" * 200_000


@pytest.mark.parametrize("budget", ["4000", "2KB", "100%"])
def test_names_cannot_command_the_terminal(
    graph_file: str, tmp_path: Path, budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads(Path(graph_file).read_text())
    data["name"] = NASTY
    for number, node in enumerate(data["nodes"]):
        node["name"] = f"{NASTY}{number}"
    path = tmp_path / "nasty.json"
    path.write_text(json.dumps(data))
    _, out, err = run("solve", str(path), "--budget", budget, "--time-limit", "5", capsys=capsys)
    printed = (out + err).replace("\n", "")
    assert printed.isprintable()
    assert len(err) < 5000
    data["nodes"][0]["inputs"] = [10**6]
    path.write_text(json.dumps(data))
    status, _, err = run("solve", str(path), "--budget", budget, capsys=capsys)
    assert status == 2
    assert err[:-1].isprintable()
    assert len(err) < 5000


def test_no_schedule_found_is_status_4(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("solve", graph_file, "--budget", "4000", "--solver", "retain_all", "--time-limit", "5")
    status, out, err = run(*arguments, capsys=capsys)
    assert status == 4
    assert "NOT_FOUND" in out
    assert "another --solver" in err


def test_a_proof_about_stages_alone_is_status_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # a has to be there at the end and does not fit beside b: a, b and a again is the only schedule, and in no stage.
    save_graph(graph_of({"a": "", "b": ""}, sizes={"a": 5, "b": 5}, outputs="a"), tmp_path / "graph.json")
    arguments = ("solve", str(tmp_path / "graph.json"), "--budget", "5", "--time-limit", "5")
    status, out, err = run(*arguments, "--solver", "block_relaxation", capsys=capsys)
    assert (status, "NOT_FOUND" in out) == (4, True)
    assert "none exists in Checkmate's stages" in err
    assert "least budget known to work is 5 B (5 bytes)" in err
    assert run(*arguments, capsys=capsys)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: COMMAND; see checkmate-tf --help"),
        (("fly",), "invalid choice: 'fly'"),
        (("solve", "GRAPH"), "the following arguments are required: --budget"),
        (("solve", "GRAPH", "--budget", "0"), "budget '0' is 0 bytes; it must be at least 1 byte"),
        (("solve", "GRAPH", "--budget", "-5"), "it must be at least 1 byte"),
        (("solve", "GRAPH", "--budget", "much"), "budget 'much' is not bytes, a size"),
        (("solve", "GRAPH", "--budget", "80%", "--solver", "magic"), "there is no solver 'magic'; choose one of"),
        (("solve", "GRAPH", "--budget", "80%", "--order", "any"), "invalid choice: 'any'"),
        (("solve", "GRAPH", "--budget", "80%", "--time-limit", "nan"), "not a number of seconds above 0"),
        (("solve", "GRAPH", "--budget", "80%", "--time-limit", "soon"), "invalid"),
        (("solve", "nowhere.json", "--budget", "80%"), "cannot read graph nowhere.json"),
        (
            ("solve", "GRAPH", "--budget", "100%", "--solver", "retain_all", "--output", "/sys/none/schedule.json"),
            "cannot write",
        ),
        (("compare", "GRAPH", "--budget", "80%", "--solver", "magic"), "there is no solver 'magic'"),
        (("plot", "GRAPH", "nowhere.json"), "cannot read schedule nowhere.json"),
        (("plot", "GRAPH", "GRAPH"), "schedule has the format 'checkmate-graph/1'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    arguments: tuple[str, ...], message: str, graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(*(graph_file if word == "GRAPH" else word for word in arguments), capsys=capsys)
    assert (status, out) == (2, "")
    assert err.startswith("checkmate-tf")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ('{"format": "checkmate-graph/9"}', "this version reads 'checkmate-graph/1'"),
        (json.dumps({**graph_to_json(GRAPH), "resident_bytes": float("nan")}), "resident_bytes of graph is nan"),
    ],
)
def test_bad_graph_file(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    status, out, err = run("solve", str(path), "--budget", "80%", capsys=capsys)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_compare_shows_every_solver_at_every_budget(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("compare", graph_file, "--budget", "100%", "4000", "--solver", "retain_all", "exhaustive")
    status, out, _ = run(*arguments, capsys=capsys)
    assert status == 0
    cells = [line.split()[:3] for line in out.splitlines()[2:]]
    assert cells == [
        ["100%", "retain_all", "OPTIMAL"],
        ["100%", "exhaustive", "OPTIMAL"],
        ["4000", "retain_all", "NOT_FOUND"],
        ["4000", "exhaustive", "OPTIMAL"],
    ]


def test_compare_json_and_statuses(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = ("compare", graph_file, "--json", "--solver", "retain_all", "--budget")
    status, out, _ = run(*base, "4000", capsys=capsys)
    data = json.loads(out)
    assert status == 4
    assert data["baseline_peak_bytes"] == STOCK_PEAK
    assert [entry["status"] for entry in data["solutions"]] == ["NOT_FOUND"]
    assert run(*base, "1000", capsys=capsys)[0] == 3
    assert run(*base, "100%", capsys=capsys)[0] == 0


def test_compare_draws_the_trade_off(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "pareto.png"
    arguments = ("compare", graph_file, "--budget", "100%", "4000", "--solver", "exhaustive", "--plot", str(picture))
    assert run(*arguments, capsys=capsys)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_solvers_lists_every_solver_with_its_first_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run("solvers", "--json", capsys=capsys)
    assert status == 0
    listed = {entry["solver"]: entry["description"] for entry in json.loads(out)["solvers"]}
    assert tuple(listed) == SOLVER_NAMES
    assert all(listed.values())
    assert listed["retain_all"].startswith("No rematerialization")


def test_plot_writes_a_picture(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, picture = tmp_path / "schedule.json", tmp_path / "pictures" / "schedule.png"
    run("solve", graph_file, "--budget", "80%", "--solver", "exhaustive", "--output", str(schedule), capsys=capsys)
    status, out, _ = run("plot", graph_file, str(schedule), "--budget", "80%", "--output", str(picture), capsys=capsys)
    assert status == 0
    assert str(picture) in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    status, _, err = run("plot", graph_file, str(schedule), "--output", str(tmp_path / "s.nonsense"), capsys=capsys)
    assert status == 2
    assert "cannot write the picture" in err


def test_plot_writes_pages_and_traces(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, page, trace = (str(tmp_path / name) for name in ("schedule.json", "plan.html", "trace.json"))
    run("solve", graph_file, "--budget", "80%", "--solver", "exhaustive", "--output", schedule, capsys=capsys)
    assert run("plot", graph_file, schedule, "--budget", "80%", "--output", page, capsys=capsys)[0] == 0
    assert "The budget is 3.91 KiB; the stock step takes 4.88 KiB" in Path(page).read_text(encoding="utf-8")
    assert run("plot", graph_file, schedule, "--output", trace, capsys=capsys)[0] == 0
    assert "traceEvents" in json.loads(Path(trace).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["graph.json", "", "folder"])
def test_an_output_that_cannot_be_is_refused_before_the_search(
    graph_file: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("checkmate_tf.commands.solve.solve", None)
    monkeypatch.setattr("checkmate_tf.commands.compare.solve", None)
    before = Path(graph_file).read_bytes()
    for command in ("solve", "compare"):
        output = ("--output" if command == "solve" else "--plot", name)
        status, out, err = run(command, graph_file, "--budget", "80%", *output, capsys=capsys)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1
    Path("schedule.json").write_text(json.dumps({"format": "checkmate-schedule/1", "order": list(range(6))}))
    assert run("plot", graph_file, "schedule.json", "--output", name, capsys=capsys)[0] == 2
    assert Path(graph_file).read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "graph.json", "schedule.json"}


@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_a_schedule_that_finds_no_room_on_the_disk_is_printed(
    graph_file: str, tmp_path: Path, json_flag: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("solve", graph_file, "--budget", "80%", "--solver", "exhaustive", "--output", "/dev/full")
    status, out, err = run(*arguments, *json_flag, capsys=capsys)
    assert status == 2
    assert err == "checkmate-tf: [Errno 28] No space left on device: '/dev/full'\n"
    schedule = tmp_path / "schedule.json"
    schedule.write_text(out.splitlines()[-1])
    assert simulate(GRAPH, load_schedule(schedule)).peak_bytes == 4000
    assert ("OPTIMAL" in out.partition("{")[0]) != bool(json_flag)
    assert run("plot", graph_file, str(schedule), "--output", "/dev/full", capsys=capsys)[::2] == (2, err)


def test_plot_writes_the_file_that_it_names(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule, picture = tmp_path / "schedule.json", tmp_path / "picture"
    run("solve", graph_file, "--budget", "80%", "--solver", "exhaustive", "--output", str(schedule), capsys=capsys)
    assert run("plot", graph_file, str(schedule), "--output", str(picture), capsys=capsys)[1] == f"wrote {picture}\n"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_plan_writes_a_page_a_trace_and_where_nodes_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = (
        "import keras\n"
        "def build():\n"
        "    layers = [keras.layers.Dense(64, activation='relu', name=f'dense_{i}') for i in range(8)]\n"
        "    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(1, name='last')])\n"
        "    model.compile('sgd', 'mse', jit_compile=False)\n"
        "    return model\n"
    )
    (tmp_path / "small_model.py").write_text(model, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    options = ("--batch-size", "512", "--budget", "90%", "--costs", "flops", "--no-measure", "--json")
    files = ("--html", "plan.html", "--trace", "plan.json", "--graph", "graph.json", "--output", "schedule.json")
    status, out, _ = run("plan", "small_model:build", *options, *files, capsys=capsys)
    assert status == 0
    recomputed = json.loads(out)["recomputed"]
    assert recomputed
    assert {one["layer"] for one in recomputed} <= {f"dense_{i}" for i in range(8)}
    assert "dense_7" in Path("plan.html").read_text(encoding="utf-8")
    assert json.loads(Path("plan.json").read_text(encoding="utf-8"))["traceEvents"]
    assert run("plot", "graph.json", "schedule.json", "--output", "again.html", capsys=capsys)[0] == 0
    shape = '"float32 [512, 64]"'
    assert all(shape in Path(name).read_text(encoding="utf-8") for name in ("plan.html", "again.html"))


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(command, "--help", capsys=capsys)
    assert status == 0
    assert out.startswith(f"usage: checkmate-tf {command}")


def test_module_runs_as_the_command_does(graph_file: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "checkmate_tf", "solve", graph_file, "--budget", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("checkmate-tf: budget 'nothing'")
    assert "Traceback" not in result.stderr


def test_tensorflow_writes_nothing_between_results(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(
        "import keras\n"
        "def build():\n"
        "    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])\n"
        "    model.compile('sgd', 'mse', jit_compile=False)\n"
        "    return model\n"
    )
    command = [sys.executable, "-m", "checkmate_tf", "estimate", "small:build", "--batch-size", "4", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["peak_bytes"] > 0


def test_output_cut_short_is_no_error(graph_file: str) -> None:
    command = f"{sys.executable} -m checkmate_tf solvers | true"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("shell", "status", "out", "err"),
    [
        ("{} solvers >&-", 0, "", ""),
        ("{} solvers >&- 2>&-", 0, "", ""),
        ("{} solve missing.json --budget 1 2>&-", 2, "", ""),
        ("{} solvers >/dev/full", 2, "", "checkmate-tf: [Errno 28] No space left on device\n"),
        ("mkdir gone; cd gone; rmdir ../gone; {} solvers", 2, "", "checkmate-tf: the current directory .*\n"),
    ],
)
def test_a_lack_of_streams_or_of_a_directory_is_no_traceback(
    shell: str, status: int, out: str, err: str, tmp_path: Path
) -> None:
    command = ["bash", "-c", shell.format(f"{sys.executable} -m checkmate_tf")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (status, out)
    assert re.fullmatch(err.replace("[", r"\["), result.stderr.removeprefix("shell-init"))


def test_a_name_of_any_length_leaves_a_table_that_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = tuple(replace(node, name=f"{node.name}{'n' * 60_000}") for node in GRAPH.nodes)
    save_graph(replace(GRAPH, name="g" * 60_000, nodes=nodes), tmp_path / "graph.json")
    status, out, err = run("solve", str(tmp_path / "graph.json"), "--budget", "100%", capsys=capsys)
    assert (status, err) == (0, "")
    assert len(out) < 4000
