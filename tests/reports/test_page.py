"""The page of a plan: what is in the file, and what it does in a browser."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from checkmate_tf.budget import format_bytes
from checkmate_tf.graph import Graph
from checkmate_tf.origins import NodeOrigin, Origins, ValueType, guess_origins
from checkmate_tf.reports.budget_curve import list_ticks
from checkmate_tf.reports.page import make_page, save_page
from checkmate_tf.reports.pictures import save_picture
from checkmate_tf.reports.plan import Plan
from checkmate_tf.reports.trace import save_trace
from checkmate_tf.reports.view import PlanView
from checkmate_tf.schedule import Schedule
from tests.graphs import training_chain
from tests.plans import make_curve, make_plan
from tests.reports.browser import CHROMIUM, Browser, open_browser

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page in")

EVIL = "</script><img src=x onerror=\"document.title='broken'\">"
CHAIN = replace(training_chain(6, size=2**20, cost=10**6), cost_unit="ns", resident_bytes=3 * 2**20)


def make_chain_plan() -> Plan:
    """Six layers, the third of which has a hostile name, within 70 % of the memory."""
    layers = {"f2": f"block/{EVIL}", "b2": f"block/{EVIL}"}
    nodes = (NodeOrigin(layers.get(n.name, f"block/{n.name}"), f"model.py:{i}") for i, n in enumerate(CHAIN.nodes))
    origins = Origins(tuple(nodes), tuple(ValueType((2, 2**17), "float32") for _ in CHAIN.values))
    plan = make_plan(CHAIN, "80%")
    resident = replace(plan.resident, parameters=2**20)
    return Plan(replace(plan.planned, origins=origins, resident=resident))


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_chain_plan()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "plan.html"
    plan.to_html(path)
    return path


def make_large_view() -> PlanView:
    """Ten thousand nodes with names as long as those of a large model, every second forward node computed again."""
    chain = training_chain(5000, size=2**20, cost=1000)
    names = (f"gradient_tape/encoder_1/block_{i % 60}_1/attention_1/dense_{i}_1/MatMul/MatMul" for i in range(10**5))
    nodes = tuple(replace(node, name=name) for node, name in zip(chain.nodes, names, strict=False))
    graph = replace(chain, nodes=nodes, cost_unit="ns")
    order = list(range(5001))
    for node in range(5001, len(nodes)):
        again = 10000 - node
        order += [again, node] if again % 2 == 0 and 0 < again < 5000 else [node]
    return PlanView("large", graph, Schedule.of(order), guess_origins(graph), 3000 * 2**20)


def test_the_page_fetches_nothing_and_escapes_names(plan: Plan) -> None:
    text = make_page(replace(plan.view, name=EVIL))
    assert not re.search(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:)?//", text)
    assert "default-src 'none'" in text
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2


def test_names_that_no_file_can_hold_are_escaped(tmp_path: Path) -> None:
    name = "\ud800\x1b[2J $x_{" + "long" * 10_000
    nodes = tuple(replace(node, name=f"{name}{node.name}") for node in CHAIN.nodes)
    graph = replace(CHAIN, nodes=nodes, name=name, source=name)
    view = PlanView(name, graph, Schedule(tuple(range(len(nodes)))), guess_origins(graph))
    save_page(view, tmp_path / "plan.html")
    save_trace(view, tmp_path / "plan.json")
    save_picture(view, tmp_path / "plan.svg")
    ElementTree.parse(tmp_path / "plan.svg")
    assert r"\ud800\x1b[2J $x_{long" in (tmp_path / "plan.html").read_text(encoding="utf-8")
    for file in tmp_path.iterdir():
        assert b"\x1b" not in file.read_bytes()


def test_a_curve_of_budgets_has_a_section_and_its_names_are_escaped(plan: Plan) -> None:
    assert 'id="pareto"' not in make_page(plan.view)
    curve = make_curve(EVIL)
    points = tuple(replace(point, solver=EVIL) for point in curve.points)
    text = make_page(plan.view, pareto=replace(curve, points=points, device=EVIL))
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2
    section = text.partition('id="pareto">')[2].partition("</section>")[0]
    assert section.count("<title>") == 4 + 4 + 1  # predicted, measured, refused
    assert f"budget of this plan: {format_bytes(plan.budget_bytes)}" in section


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (20, 100, ["20", "40", "60", "80", "100"]),
        (1.001, 1.0052, ["1.001", "1.002", "1.003", "1.004", "1.005"]),
        (0, 52.5, ["0", "10", "20", "30", "40", "50"]),
        (7, 7, ["7"]),
        (1000, 6000, ["1,000", "2,000", "3,000", "4,000", "5,000", "6,000"]),
    ],
)
def test_ticks_are_round_numbers_that_differ(low: float, high: float, texts: list[str]) -> None:
    assert [text for _, text in list_ticks(low, high, 5)] == texts


def test_a_large_page_is_small(tmp_path: Path) -> None:
    save_page(make_large_view(), tmp_path / "large.html")
    assert (tmp_path / "large.html").stat().st_size < 5_000_000


def test_data_of_the_page_are_the_records(plan: Plan) -> None:
    text = make_page(plan.view)
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    assert data["solution"]["seconds"] == plan.solution.solve_time_s, "not rounded twice"
    recomputed = [(data["nodes"]["name"][row["node"]], row["times"], row["freed"]) for row in data["recomputed"]]
    assert recomputed == [(one.name, one.times, one.freed_bytes) for one in plan.recomputed]
    assert data["stock"]["peak_bytes"] == plan.predicted_stock_peak_bytes
    assert data["rematerialized"]["peak_bytes"] == plan.predicted_peak_bytes


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_opens_without_a_word_of_complaint(browser: Browser, page: Path, width: int, dark: bool) -> None:
    browser.problems.clear()
    browser.open(page, width=width, dark=dark)
    sticks_out = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not browser.run(sticks_out), "nothing does to the right"
    light = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(part => part > 128)")
    assert light is not dark
    assert browser.run("document.title") == "chain-6: plan of a training step"
    assert browser.problems == []


@needs_chromium
def test_numbers_are_the_plans(plan: Plan, browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.text('[data-figure="peak"]').startswith(format_bytes(plan.predicted_peak_bytes))
    assert browser.text('[data-figure="stock-peak"]').startswith(format_bytes(plan.predicted_stock_peak_bytes))
    assert browser.text('[data-figure="budget"]').startswith(format_bytes(plan.budget_bytes))
    assert browser.text('[data-figure="overhead"]').startswith(f"{plan.overhead:.1%}")
    assert browser.text('[data-figure="recomputed"]').startswith(str(len(plan.recomputed)))
    sizes = [value.size_bytes for value in plan.peak_values() if value.step == "rematerialized"]
    rows = browser.run("[...document.querySelectorAll('#live tbody td:last-child')].map(cell => cell.innerText)")
    assert rows == [format_bytes(size) for size in sizes]
    assert f"add up to {format_bytes(plan.predicted_peak_bytes)}" in browser.text("#position")
    again = browser.run("[...document.querySelectorAll('#again tbody tr')].map(row => row.cells[2].innerText)")
    assert again == [str(one.times) for one in plan.recomputed]


@needs_chromium
def test_hovering_tells_of_the_position_and_pressing_chooses_it(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point("#memory", 0.06, 0.5)
    tip = browser.text("#memory .tip")
    assert "block/f0 · forward" in tip
    assert "position 1 of" in tip
    browser.point("#memory", 0.06, 0.5, press=True)
    assert browser.text("#position-title") == "In memory at position 1"
    # What is held throughout, and the output of f0.
    assert browser.run("document.querySelectorAll('#live tbody tr').length") == 3


@needs_chromium
def test_keys_move_through_the_positions(plan: Plan, browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('#memory').focus()")
    browser.key("Home")
    browser.key("ArrowRight")
    assert browser.text("#position-title") == "In memory at position 2"
    browser.key("p")
    assert (
        browser.text("#position-title")
        == f"In memory at position {plan.view.rematerialized.simulation.peak_position + 1}"
    )
    assert "This is the peak" in browser.text("#position")
    browser.run("document.querySelector('#schedule').focus()")
    browser.key("ArrowRight")
    assert "Computed again for" in browser.text("#position")


@needs_chromium
def test_search_and_layer_filter_everything(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.activeElement.blur()")
    browser.key("/")
    browser.call("Input.insertText", text="block/f1")
    browser.run("new Promise(done => setTimeout(done, 200))")
    assert browser.text("#matches") == f"1 of {len(CHAIN.nodes)} nodes"
    assert "held by what matches" in browser.text("#legend")
    assert browser.run("document.querySelectorAll('#layers tbody tr').length") == 1
    browser.key("Escape")
    assert browser.text("#matches") == ""
    browser.run("document.querySelector('#layers tbody button').click()")
    assert browser.run("document.querySelector('#layer').value").startswith("block/")
    browser.run(
        "const pick = document.querySelector('#layer'); pick.value = 'block'; pick.dispatchEvent(new Event('change'))"
    )
    assert browser.text("#matches") == f"{len(CHAIN.nodes)} of {len(CHAIN.nodes)} nodes"


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (400, True)])
def test_a_curve_stands_on_the_page_of_a_plan_and_on_its_own(
    plan: Plan, browser: Browser, tmp_path: Path, width: int, dark: bool
) -> None:
    curve = make_curve(EVIL, unit=CHAIN.resident_bytes // 10)
    plan.to_html(tmp_path / "plan.html", pareto=curve)
    curve.to_html(tmp_path / "curve.html")
    for name in ("plan", "curve"):
        browser.problems.clear()
        browser.open(tmp_path / f"{name}.html", width=width, dark=dark)
        sticks_out = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not browser.run(sticks_out), "nothing does to the right"
        assert browser.run("document.images.length") == 0
        ink = browser.run("getComputedStyle(document.querySelector('.curve .tick')).fill.match(/\\d+/g).map(Number)")
        assert all((part > 128) is dark for part in ink)
        assert browser.problems == []
    scrolls = browser.run("(table => table.scrollWidth > table.clientWidth)(document.querySelector('.table'))")
    assert scrolls is (width < 1000)
    browser.open(tmp_path / "plan.html", width=width, dark=dark)
    line, points = ".curve line.budget", ".curve circle[tabindex]"
    across = browser.run(f"document.querySelector('{line}').x1.baseVal.value")
    places = browser.run(f"[...document.querySelectorAll('{points}')].slice(0, 4).map(one => one.cx.baseVal.value)")
    budgets = [point.budget_bytes for point in curve.points[:4]]
    share = (plan.budget_bytes - budgets[-1]) / (budgets[0] - budgets[-1])
    assert across == pytest.approx(places[-1] + share * (places[0] - places[-1]), abs=0.2)
    browser.run(f"document.querySelector('{points}').focus()")
    browser.key("/")
    assert browser.run("document.activeElement.id") == "search"


@needs_chromium
def test_hostile_names_do_nothing(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.images.length") == 0
    assert EVIL in browser.text("#layers")
    assert browser.run("document.title") == "chain-6: plan of a training step"


@needs_chromium
def test_a_large_page_opens(browser: Browser, tmp_path: Path) -> None:
    view = make_large_view()
    save_page(view, tmp_path / "large.html")
    browser.problems.clear()
    browser.open(tmp_path / "large.html")
    assert browser.text('[data-figure="peak"]').startswith(format_bytes(view.predicted[1]))
    assert browser.problems == []


def test_pages_of_plans_that_recompute_nothing() -> None:
    assert "Nothing is computed again." in make_page(make_plan(CHAIN, "100%").view)


def test_graphs_of_names_that_repeat_have_a_page() -> None:
    graph = Graph(tuple(replace(node, name="same") for node in CHAIN.nodes), CHAIN.values)
    assert "<h1>chain-6</h1>" in make_page(make_plan(replace(graph, name="chain-6"), "80%").view)
