"""What the pictures of a plan show: the drawn figures against the schedule's."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from checkmate_tf.errors import CheckmateError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.origins import guess_origins
from checkmate_tf.reports.pictures import draw_memory, draw_schedule, plot_memory, plot_schedule, save_picture
from checkmate_tf.reports.view import PlanView
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate
from tests.graphs import graph_of, training_chain
from tests.plans import make_plan

SKIP = graph_of({"a": "", "b": "a", "c": "b", "d": "ac"}, sizes=dict.fromkeys("abcd", 2**20))
AGAIN = Schedule((0, 1, 2, 0, 3))


def view_of(graph: Graph, schedule: Schedule, budget_bytes: int | None = None) -> PlanView:
    return PlanView(graph.name, graph, schedule, guess_origins(graph), budget_bytes)


def list_marks(graph: Graph, schedule: Schedule) -> list[list[list[float]]]:
    axes = Figure().subplots()
    draw_schedule(axes, view_of(graph, schedule))
    marks = [np.asarray(line.get_xydata()).tolist() for line in axes.get_lines() if line.get_marker() == "s"]
    return [points for points in marks if points]


def test_marks_are_the_r_matrix() -> None:
    first, again = list_marks(SKIP, AGAIN)
    assert first == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert again == [[0, 3]], "a is computed again in the stage of d"


def test_nodes_in_free_order_count_by_first_computation() -> None:
    assert list_marks(graph_of({"a": "", "b": "", "c": "ab"}), Schedule((1, 0, 1, 2)))[1] == [[0, 2]]


def test_areas_add_up_to_the_simulated_memory() -> None:
    view = view_of(SKIP, AGAIN, 5 * 2**20)
    axes = Figure().subplots()
    draw_memory(axes, view, view.rematerialized, "rematerialized")
    top = max((area.get_datalim(axes.transData).y1 for area in axes.collections), default=0.0)
    assert top == simulate(SKIP, AGAIN).peak_bytes / 2**20 == 3
    assert axes.get_xlim() == (0, 5), "five computations of a unit each, and four of the stock step"
    budget = next(line for line in axes.get_lines() if line.get_label() == "budget")
    assert list(np.asarray(budget.get_ydata())) == [5.0, 5.0]
    assert [text.get_text() for text in axes.texts][-1] == "peak 3.00 MiB, at d"


def test_the_budget_is_on_both_axes_and_named_once() -> None:
    figure = plot_memory(make_plan(training_chain(3, size=2**20), "80%").view)
    assert len(figure.axes) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()].count("budget") == 1


@pytest.mark.parametrize("num_layers", [20, 2500])
def test_schedules_of_any_size_have_names_that_can_be_read(num_layers: int) -> None:
    graph = training_chain(num_layers)
    figure = plot_schedule(view_of(graph, Schedule.of(range(len(graph.nodes)))))
    names = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(names) == (41 if num_layers == 20 else 16)
    assert names[0] == "f0"
    figure.savefig("/dev/null", format="png")


def test_pictures_of_steps_that_take_nothing(tmp_path: Path) -> None:
    graph = Graph((Node("a", "op", (), (0,), 0),), (Value("a", 0),))
    save_picture(view_of(graph, Schedule((0,))), tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").exists()


def test_unknown_picture_format(tmp_path: Path) -> None:
    with pytest.raises(CheckmateError, match="cannot write the picture"):
        save_picture(view_of(SKIP, AGAIN), tmp_path / "picture.docx")


def test_notebooks_show_summary_and_memory() -> None:
    shown = make_plan(training_chain(3, size=1000), "80%")._repr_html_()
    assert "3.91 KiB at its peak" in shown
    assert 'src="data:image/png;base64,' in shown


def test_figures_show_themselves_in_notebooks() -> None:
    plan = make_plan(training_chain(3, size=1000), "80%")
    for figure in (plan.plot_memory(), plan.plot_schedule()):
        assert figure._repr_html_().startswith('<img alt="chain-3: ')


def test_names_are_no_formulas() -> None:
    """What stands between dollar signs here is one that matplotlib would refuse."""
    nodes = tuple(replace(node, name=rf"{node.name}$\frac$") for node in SKIP.nodes)
    view = view_of(replace(SKIP, name="$\\sqrt$", nodes=nodes), AGAIN)
    for figure in (plot_memory(view), plot_schedule(view)):
        figure.savefig("/dev/null", format="png")
