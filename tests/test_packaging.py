"""The package as installed: its packages, what importing it drags in, and who imports what (DESIGN, section 5)."""

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"checkmate_tf": ROOT / "checkmate_tf", "profiling": ROOT / "profiling", "solvers": ROOT / "solvers"}
HEAVY = ("tensorflow", "keras", "matplotlib")
# Those are imported when they are used; the first needs a licence, the second is slow to import.
LAZY = ("gurobipy", "cvxpy")

# What the modules of the core may import from the package; outside it, the standard library and numpy.
CORE = {
    "errors": set[str](),
    "graph_arrays": set[str](),
    "graph": {"errors", "graph_arrays"},
    "budget": {"errors"},
    "origins": {"graph"},
    "user_warnings": set[str](),
    "child_process": set[str](),
    "process_memory": set[str](),
    "interrupts": set[str](),
    "schedule": {"errors", "graph", "graph_arrays"},
    "simulator": {"errors", "graph", "graph_arrays", "schedule"},
    "constraints": {"errors", "graph", "schedule"},
    "arguments": {"errors"},
    "patterns": {"arguments", "constraints", "errors", "graph", "origins"},
    "files": {"arguments", "errors"},
    "serialization": {"budget", "errors", "files", "graph", "origins", "schedule"},
}
# Private names of others, for the rooms that need TensorFlow.
PRIVATE = {"tf_private", "keras_private"}
PRIVATE_MODULES = ("tensorflow.python", "tensorflow.compiler", "keras.src")
PRIVATE_READERS = {"tracing", "profiling", "measurement", "rewriting", "executors", "training", "max_batch"}
# What each room may import beside itself and the core, and nothing else (DESIGN, section 5).
ROOMS = {
    "tracing": set[str](),
    "profiling": {"tracing"},
    "measurement": {"tracing", "profiling"},
    "rewriting": {"tracing", "profiling"},
    "executors": {"tracing", "profiling", "rewriting", "measurement"},
    "planning": {"solution_json", "solvers", "profiling", "executors", "measurement", "progress"},
    "training": {
        "tracing",
        "profiling",
        "rewriting",
        "executors",
        "measurement",
        "planning",
        "reports",
        "solvers",
        "progress",
    },
    "max_batch": {
        "tracing",
        "profiling",
        "executors",
        "measurement",
        "planning",
        "training",
        "solvers",
        "reports",
    },
    "tradeoff": {"executors", "measurement", "planning", "training", "solvers", "profiling", "reports", "progress"},
    "reports": {"executors", "measurement", "planning", "solvers"},
    "progress": {"solvers"},
    "solution_json": {"solvers"},
    "solvers": set[str](),
}
# Of the core, what a room does without.
WITHOUT = {
    "profiling": {"schedule", "simulator", "serialization", "budget", "origins"},
    "tracing": {"schedule", "simulator", "serialization", "budget"},
    "solvers": {"serialization", "origins"},
}
# Nothing but these imports `commands`.
WIRING = {"cli", "commands", "demo", "__main__"}
# What each room of executors may import of the others; `executors` is its root. Neither executor knows of the other.
EXECUTOR_ROOMS = {"emission": set[str](), "graph": {"emission", "executors"}, "xla": {"emission", "executors"}}
# What each room of solvers may import of the others; `solvers` is its root. Only the portfolio sees all of them.
SOLVER_ROOMS = {
    "mip": set[str](),
    "checkpointing": {"solvers"},
    "ordering": {"solvers"},
    "offloading": {"solvers", "mip"},
    "annealing": {"solvers", "mip", "offloading"},
    "twremat": {"solvers"},
    "fastsa": {"solvers", "ordering"},
    "moccasin": {"solvers", "mip", "ordering", "offloading"},
    "relaxation": {"solvers", "mip", "annealing"},
    "checkmate": {"solvers", "mip", "annealing", "checkpointing", "offloading"},
}


def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config


def module_files() -> list[tuple[str, Path]]:
    """(name below checkmate_tf, file) of every module of the package: ("solvers.base", .../solvers/base.py)."""
    found = []
    for folder_name, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            parts = parts if folder_name == "checkmate_tf" else (folder_name, *parts)
            found.append((".".join(parts), path))
    return found


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports at run time, wherever in it: "numpy", "checkmate_tf.graph"."""
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        item = waiting.pop()
        if isinstance(item, ast.If) and isinstance(item.test, ast.Name) and item.test.id == "TYPE_CHECKING":
            waiting.extend(item.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(item))
        if isinstance(item, ast.Import):
            yield from (alias.name for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0, f"{path}: relative import"
            assert item.module is not None
            if item.module == "checkmate_tf":
                yield from (f"checkmate_tf.{alias.name}" for alias in item.names)
            else:
                yield item.module


def own_imports(path: Path) -> set[str]:
    """Names below checkmate_tf that a file imports: "graph", "solvers.base"."""
    return {name.removeprefix("checkmate_tf.") for name in imports(path) if name.startswith("checkmate_tf.")}


def top(name: str) -> str:
    return name.partition(".")[0]


def test_every_package_is_installed() -> None:
    options = setup_cfg()["options"]
    assert tuple(line.partition("=")[0].strip() for line in options["package_dir"].split("\n") if line) == (
        "checkmate_tf",
        "checkmate_tf.profiling",
        "checkmate_tf.solvers",
    )
    listed = set(options["packages"].split())
    with_code = {path.parent for _, path in module_files()}
    expected = set()
    for folder in with_code:
        assert (folder / "__init__.py").exists(), folder
        parts = folder.relative_to(ROOT).parts
        expected.add(".".join(parts if parts[0] == "checkmate_tf" else ("checkmate_tf", *parts)))
    assert listed == expected


def test_files_beside_the_code_are_installed() -> None:
    listed = dict(setup_cfg()["options.package_data"].items())
    for folder in {path.parent for _, path in module_files()}:
        beside = {path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
        package = ".".join(folder.relative_to(ROOT).parts)
        assert set(listed.get(package, "").split(", ")) - {""} == beside, package


def test_the_package_needs_the_packages_that_it_imports() -> None:
    options, extras = setup_cfg()["options"], setup_cfg()["options.extras_require"]
    listed = options["install_requires"] + extras["plot"] + extras["jax"]
    needed = {re.split(r"[ =<>\[]", line)[0] for line in listed.split("\n")}
    imported = {top(name) for _, path in module_files() for name in imports(path)}
    assert imported - sys.stdlib_module_names - {"checkmate_tf"} == needed - {""}


def test_importing_the_package_imports_none_of_those_that_it_needs() -> None:
    needed = {re.split(r"[ =<>]", line)[0] for line in setup_cfg()["options"]["install_requires"].split("\n")} - {""}
    check = f"import sys, checkmate_tf; print(sorted({needed} & sys.modules.keys()))"
    result = subprocess.run([sys.executable, "-c", check], cwd="/", capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_clone_that_is_not_installed_says_what_to_do() -> None:
    """`python` started in a clone imports the clone's folder, which lacks two rooms, before an installed package."""
    check = "import sys; sys.path.append('.'); import checkmate_tf; checkmate_tf.solve"
    result = subprocess.run([sys.executable, "-S", "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "another directory, or pip install -e . in the clone" in result.stderr.splitlines()[-1]


def test_installed_version_is_that_of_setup_cfg() -> None:
    assert metadata.version("checkmate_tf") == setup_cfg()["metadata"]["version"]


@pytest.mark.parametrize(
    "statement",
    [
        "import checkmate_tf; checkmate_tf.solve, checkmate_tf.load_graph, checkmate_tf.Graph",
        "import checkmate_tf.solvers as s; [s.get_solver(name) for name in s.SOLVER_NAMES]",
        "import checkmate_tf.cli; checkmate_tf.cli.main(['solvers'])",
        "import checkmate_tf.commands.solve, checkmate_tf.commands.compare, checkmate_tf.commands.plot",
    ],
)
def test_importing_stays_free_of_tensorflow(statement: str) -> None:
    check = f"import sys; heavy = [name for name in {HEAVY + LAZY} if name in sys.modules]; assert not heavy, heavy"
    result = subprocess.run(
        [sys.executable, "-c", f"{statement}; {check}"], cwd="/", capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_public_names_resolve() -> None:
    import checkmate_tf

    for name in checkmate_tf.__all__:
        assert getattr(checkmate_tf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = checkmate_tf.nothing


@pytest.mark.parametrize(("module", "allowed"), CORE.items())
def test_core_imports_only_what_is_below_it(module: str, allowed: set[str]) -> None:
    path = FOLDERS["checkmate_tf"] / f"{module}.py"
    assert own_imports(path) <= allowed
    outside = {top(name) for name in imports(path)} - {"checkmate_tf", "numpy"}
    assert outside <= sys.stdlib_module_names


def room_imports(rooms: Iterable[str], prefix: str = "") -> dict[str, set[str]]:
    """The other rooms, or modules outside of rooms, that the modules of each room import."""
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for name, path in module_files():
        room = top(name.removeprefix(prefix))
        if name.startswith(prefix) and room in found:
            found[room] |= {top(imported.removeprefix(prefix)) for imported in own_imports(path)} - {room}
    return found


def test_every_module_has_its_room() -> None:
    outside = {top(name) for name, _ in module_files()} - {*CORE, *PRIVATE, *ROOMS, *WIRING, "__init__"}
    assert not outside


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room: str) -> None:
    imported = room_imports([room])[room]
    # `from checkmate_tf import Graph` names no module.
    modules = {top(name) for name, _ in module_files()}
    private = PRIVATE if room in PRIVATE_READERS else set()
    assert imported & modules <= ROOMS[room] | private | CORE.keys() - WITHOUT.get(room, set())


@pytest.mark.parametrize(
    ("whole", "room", "allowed"),
    [("solvers", *item) for item in SOLVER_ROOMS.items()] + [("executors", *item) for item in EXECUTOR_ROOMS.items()],
)
def test_rooms_within_rooms_import_only_what_they_may(whole: str, room: str, allowed: set[str]) -> None:
    names = [name.removeprefix(f"{whole}.") for name, _ in module_files() if name.startswith(f"{whole}.")]
    rooms = {top(name) for name in names if "." in name}
    root = {name for name in names if "." not in name}
    inside = {
        imported.removeprefix(f"{whole}.")
        for name, path in module_files()
        if name.startswith(f"{whole}.{room}.")
        for imported in own_imports(path)
        if imported.startswith(whole)
    }
    found = {top(name) if top(name) in rooms else whole for name in inside if top(name) in rooms | root | {whole}}
    assert found - {room} <= allowed


def test_no_module_leads_back_to_itself() -> None:
    """Not even by what it names as types only."""
    files = dict(module_files())
    reads: dict[str, set[str]] = {}
    for name, path in files.items():
        reads[name] = set()
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, ast.ImportFrom) and (item.module or "").startswith("checkmate_tf"):
                module = (item.module or "").removeprefix("checkmate_tf").removeprefix(".")
                targets = {f"{module}.{alias.name}".removeprefix(".") for alias in item.names} | {module}
                reads[name] |= (targets | {f"{target}.__init__" for target in targets}) & files.keys()
    list(TopologicalSorter(reads).static_order())  # raises CycleError, which names the circle


def test_no_room_leads_back_to_itself() -> None:
    reached = room_imports(ROOMS)
    for _ in ROOMS:
        for room, onward in reached.items():
            reached[room] = onward.union(*(reached.get(other, set()) for other in onward))
    assert not [room for room, onward in reached.items() if room in onward]


def test_solvers_import_no_tensorflow() -> None:
    for name, path in module_files():
        if top(name) == "solvers":
            assert not {top(imported) for imported in imports(path)} & set(HEAVY), name


def test_matplotlib_is_imported_where_it_is_used() -> None:
    for name, path in module_files():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        at_import = [item for item in tree.body if isinstance(item, ast.Import | ast.ImportFrom)]
        named = {alias.name for item in at_import if isinstance(item, ast.Import) for alias in item.names}
        named |= {item.module or "" for item in at_import if isinstance(item, ast.ImportFrom)}
        assert "matplotlib" not in {top(module) for module in named}, name


def test_experiments_import_nothing_from_tests() -> None:
    for path in (ROOT / "experiments").rglob("*.py"):
        assert "tests" not in {top(name) for name in imports(path)}, path


def test_nobody_imports_the_top_level_folders() -> None:
    """`import solvers` from the repository root would make a second copy of every class."""
    for folder in ("checkmate_tf", "profiling", "solvers", "tests", "experiments"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not {top(name) for name in imports(path)} & {"solvers", "profiling"}, path


def test_private_names_of_tensorflow_and_keras_are_in_one_place() -> None:
    for name, path in module_files():
        if name not in PRIVATE:
            private = {module for module in imports(path) if module.startswith(PRIVATE_MODULES)}
            assert not private, f"{path}: {private}"
