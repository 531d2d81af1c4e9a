"""The documentation says what is so: its Python runs, its links lead somewhere, its reference names everything."""

import ast
import inspect
import os
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf import errors

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not {"generated", "_build"} & set(path.relative_to(DOCS).parts))
WRITTEN = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "README.md", *PAGES]
_FENCE = re.compile(r"^( *)```python([^\n]*)\n(.*?)^ *```$", flags=re.DOTALL | re.MULTILINE)
# Only with a reason does a block stay out: ```python no-run: needs two devices
_LEFT_OUT = re.compile(r"no-run: \w.+")
# What is made smaller or shorter here, by page.
SMALLER = {
    "budget.md": {"progress=False)": "progress=False, time_limit_s=4)"},
    "large_vocabularies.md": {"8192": "4096"},
    "LANGUAGE_MODELS.md": {
        "num_layers=6, num_heads=6, hidden_dim=192, intermediate_dim=768": (
            "num_layers=1, num_heads=2, hidden_dim=32, intermediate_dim=128"
        ),
        'batch_size=16, budget="50%"': 'batch_size=16, budget="90%"',
        'batch_size=1, budget="50%"': 'batch_size=1, budget="100%"',
    },
}


def list_blocks(path: Path) -> list[tuple[int, str, str]]:
    """(line, option, code) of every block of Python on a page."""
    text = path.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        indent = len(fence[1])
        code = "\n".join(line[indent:] for line in fence[3].splitlines())
        found.append((text.count("\n", 0, fence.start()) + 2, fence[2].strip(), code))
    return found


def make_namespace() -> dict[str, Any]:
    """The names that blocks use and do not make: a small compiled model, its data, and those of a language model."""
    convolutions = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(5)]
    layers = [keras.Input((32, 32, 3)), *convolutions, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, jit_compile=False)
    random = np.random.default_rng(0)
    return {
        "__name__": __name__,
        "keras": keras,
        "np": np,
        "tf": tf,
        "checkmate_tf": checkmate_tf,
        "model": model,
        "loss": loss,
        "x": random.random((64, 32, 32, 3), dtype=np.float32),
        "y": random.integers(10, size=64),
        "tokens": random.integers(128, size=(16, 129)),
        "mask": np.ones((16, 128), dtype=bool),
    }


WITH_PYTHON = [path for path in WRITTEN if path.name != "README.md" and list_blocks(path)]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page one after the other, as a reader would type them. README's has a test of its own."""
    monkeypatch.chdir(tmp_path)
    graph = checkmate_tf.load_graph(ROOT / "experiments" / "graphs" / "vgg16.json")
    checkmate_tf.save_graph(graph, "graph.json")
    replaced = SMALLER.get(path.name, {})
    blocks = [(line, code) for line, option, code in list_blocks(path) if not option.startswith("no-run")]
    for written in replaced:
        assert any(written in code for _, code in blocks), written
    namespace = make_namespace()
    for line, code in blocks:
        for written, instead in replaced.items():
            code = code.replace(written, instead)
        exec(compile("\n" * (line - 1) + code, str(path), "exec"), namespace)


def test_blocks_that_do_not_run_are_python_and_say_why() -> None:
    left_out = [(path, option, code) for path in WRITTEN for _, option, code in list_blocks(path) if option]
    for path, option, code in left_out:
        assert _LEFT_OUT.fullmatch(option), (path, option)
        ast.parse(code)
    assert len(left_out) <= 6


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, heading in re.findall(r"\]\((?!https?:)([^()\s#]*)(#[^()\s]*)?\)", text):
        file = Path(os.path.normpath(path.parent / target)) if target else path
        assert file.exists(), f"{path.name} links to {target}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert heading[1:] in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


def test_every_page_is_in_the_contents() -> None:
    listed = set()
    for page in PAGES:
        for contents in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL):
            names = [line for line in contents.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    assert {page for page in PAGES if page.name != "index.md"} == {
        page for page in listed if "generated" not in page.parts
    }


def test_the_reference_has_every_public_name_and_error() -> None:
    named = set(re.findall(r"^\.\. auto\w+:: (\w+)$", (DOCS / "reference" / "api.md").read_text(), flags=re.MULTILINE))
    assert set(checkmate_tf.__all__) <= named
    described = (DOCS / "reference" / "errors.md").read_text()
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            assert name in described, name


def test_experimental_names_are_public() -> None:
    table = (DOCS / "reference" / "api.md").read_text().partition("| experimental |")[2].partition("## Training")[0]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line)}
    assert named
    assert named <= set(checkmate_tf.__all__)


@pytest.mark.parametrize("path", sorted((DOCS / "notebooks").glob("*.md")), ids=lambda path: path.stem)
def test_notebooks_name_what_there_is(path: Path) -> None:
    """`make docs` runs the notebooks, which takes minutes; this finds a public name that has changed."""
    cells = re.findall(r"```\{code-cell\} ipython3\n(.*?)```", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for item in ast.walk(ast.parse("\n".join(cells))):
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "checkmate_tf":
            assert item.attr in checkmate_tf.__all__
        if isinstance(item, ast.Call) and ast.unparse(item.func).startswith("checkmate_tf."):
            function = getattr(checkmate_tf, ast.unparse(item.func).partition(".")[2])
            inspect.signature(function).bind(
                *item.args, **{keyword.arg or "": keyword.value for keyword in item.keywords}
            )


def test_messages_on_the_page_of_errors_are_those_of_the_code() -> None:
    files = [path for name in ("checkmate_tf", "solvers", "profiling") for path in (ROOT / name).rglob("*.py")]
    code = re.sub(r"[\"']\s*\n\s*f?[\"']", "", "\n".join(path.read_text(encoding="utf-8") for path in files))
    tables = (DOCS / "reference" / "errors.md").read_text().partition("## Exit status")[0]
    cells = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    parts = [
        part.strip(" ,") for cell in cells for text in re.findall(r"`([^`]+)`", cell) for part in text.split("...")
    ]
    assert len(parts) > 20
    assert [part for part in parts if part not in code] == []


# Of each paper: its figures, its tables and its appendices with results.
PAPERS = {
    "Checkmate": (8, 2, "ABCD"),
    "MOCCASIN": (7, 3, "A"),
    "TWRemat": (4, 2, ""),
    "FastSA": (13, 5, "ABCD"),
}


def read_papers() -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """The introduction of each paper's section, and (item, command) of its rows."""
    _, *sections = (DOCS / "notes" / "PAPERS.md").read_text(encoding="utf-8").split("\n## ")
    found = {}
    for section in sections:
        rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
        found[section.split()[0]] = section.partition("\n|")[0], [(row[0].strip(), row[-1].strip()) for row in rows]
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_and_table_of_the_papers_has_a_row(paper: str) -> None:
    items = [item for item, _ in read_papers()[paper][1]]
    listed: dict[str, list[int]] = {"Figure": [], "Table": []}
    for item in items:
        for kind, numbers in re.findall(r"(Figure|Table)s? ((?:\d+(?:, | and )?)+)", item.partition(":")[0]):
            listed[kind] += map(int, re.findall(r"\d+", numbers))
    figures, tables, appendices = PAPERS[paper]
    assert sorted(listed["Figure"]) == [*range(1, figures + 1)]
    assert sorted(listed["Table"]) == [*range(1, tables + 1)]
    assert {item.split()[1][0] for item in items if item.startswith("Appendix")} == set(appendices)


@pytest.mark.parametrize("paper", PAPERS)
def test_the_commands_for_the_papers_exist(paper: str) -> None:
    introduction, rows = read_papers()[paper]
    (prefix,) = re.findall(r"`python -m (experiments\.\w+\.)`", introduction)
    for _, commands in rows:
        for command in re.findall(r"`([^`]+)`", commands):
            program = command.removeprefix("python -m ")
            name, *arguments = program.split()
            if name == "checkmate-tf":
                continue
            module = name if program != command else prefix + name
            file = ROOT.joinpath(*module.split("."))
            file = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
            source = file.read_text(encoding="utf-8")
            for argument in arguments:
                assert argument.isupper() or argument.removeprefix("--") in source, command
