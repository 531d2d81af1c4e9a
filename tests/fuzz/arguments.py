"""Wrong arguments of every public function: each is refused at once, by an error of this package, or does no harm."""

import contextlib
import inspect
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import checkmate_tf
from checkmate_tf.errors import CheckmateError
from checkmate_tf.graph import Graph, Node, Value
from checkmate_tf.schedule import Schedule
from checkmate_tf.serialization import graph_from_json
from tests.fuzz.problems import random_graph

_JUNK: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2.5, 1e-9, 1e300, float("nan"), float("inf"), 10**9, 2**70, 10**5000, np.int64(3),
    np.float32(0.5), np.bool_(True), np.array([1, 2]), np.array(["a"]), "", "hello", "60%", "auto", "fixed", "a\0b",
    "\ud800", b"60%", [], [1], [None], (), (1,), {}, {"a": 1}, set(), object(), int, print, 1j, Path("missing"),
    Fraction(1, 3), Decimal("0.5"), float, range(3), ..., Exception("no"),
)  # fmt: skip
# A refusal is no work; planning the small model, where a value turns out to be one that does no harm, is.
_MOST_SECONDS = 60.0


def check_core_arguments(seed: int) -> str:
    """Raises unless each function that needs no TensorFlow refuses a wrong argument, or takes it."""
    lot = random.Random(seed)
    graph = graph_from_json(random_graph(lot, max_nodes=6))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.json")
        checkmate_tf.save_graph(graph, path)
        solution = checkmate_tf.solve(graph, 10**18)
        schedule_path = Path(folder, "schedule.json")
        checkmate_tf.save_solution(solution, graph, schedule_path)
        calls: Mapping[Callable[..., Any], dict[str, Any]] = {
            checkmate_tf.solve: {
                "graph": graph, "budget": "70%", "solver": "ap_greedy", "order": "fixed", "time_limit_s": 0.5,
                "seed": seed, "on_progress": None, "keep": [], "recompute": [],
            },
            checkmate_tf.load_graph: {"path": path},
            checkmate_tf.save_graph: {"graph": graph, "path": path, "origins": None},
            checkmate_tf.load_schedule: {"path": schedule_path},
            checkmate_tf.load_plan: {"path": path},
            checkmate_tf.save_solution: {"solution": solution, "graph": graph, "path": schedule_path},
            checkmate_tf.load_solution: {"path": schedule_path, "graph": graph},
            checkmate_tf.simulate: {"graph": graph, "schedule": Schedule(tuple(range(len(graph.nodes))))},
            Graph: {
                "nodes": graph.nodes, "values": graph.values, "outputs": graph.outputs, "resident_bytes": 0,
                "cost_unit": "unit", "name": "graph", "source": "", "copies_hide": True,
            },
            _make_node: {
                "name": "a", "op_type": "Relu", "inputs": (), "outputs": (0,), "cost": 1, "workspace_bytes": 0,
                "is_backward": False, "recomputable": True, "inplace": False,
            },
            _make_value: {"name": "a", "size_bytes": 1, "offload_cost": 1, "fetch_cost": 1},
            _make_schedule: {"order": (0, 0), "fetches": ()},
        }  # fmt: skip
        with contextlib.chdir(folder):  # where a name that is taken is written
            return _call_wrongly(calls, lot)


def check_model_arguments(seed: int) -> str:
    """Raises unless each function that takes a model refuses a wrong argument, or takes it; and changes no model."""
    from checkmate_tf.training.installed_step import find_installed_step

    lot = random.Random(seed)
    model, (concrete, _) = _make_model(lot.random() < 0.3), _make_function()
    options = checkmate_tf.Options("ap_greedy", costs="flops", seed=seed)
    plan = {"budget": "90%", "time_limit_s": 0.5, "options": options, "measure": False, "progress": False}
    search = {
        "model": model, "data": None, "budget": "4MiB", "time_limit_s": 0.5, "options": options, "progress": False,
    }  # fmt: skip
    calls: Mapping[Callable[..., Any], dict[str, Any]] = {
        checkmate_tf.rematerialize: {
            "model": model, "batch_size": 64, "data": None, "on_infeasible": "run", **plan,
        },
        checkmate_tf.restore: {"model": model},
        checkmate_tf.rewrite_function: {"concrete_function": concrete, **plan},
        checkmate_tf.estimate: {"model": model, "batch_size": 64, "data": None, "progress": False},
        checkmate_tf.pareto: {
            "model": model, "batch_size": 64, "data": None, "budgets": ["90%"], "other_solvers": [],
            "time_limit_s": 0.5, "options": checkmate_tf.Options(costs="flops"), "measure": False, "progress": False,
        },
        checkmate_tf.max_batch_size: {
            **search, "max_overhead": None, "axis": checkmate_tf.Axis("batch", maximum=64), "batch_size": None,
            "measure": False,
        },
        checkmate_tf.best_batch: {**search, "effective_batch_size": 4},
        checkmate_tf.Options: {
            "solver": "ap_greedy", "order": "fixed", "costs": "flops", "seed": seed, "on_mismatch": "raise",
            "chunk_loss": None, "chunk_rows": None, "num_shapes": 1, "margin": None, "keep": [], "recompute": [],
            "offload": None, "bandwidth": None, "device": None,
        },
        checkmate_tf.Axis: {"name": "batch", "minimum": None, "maximum": 64, "multiple_of": 1},
    }  # fmt: skip
    before = find_installed_step(model)
    entries = dict(before.batches.entries) if before else {}
    outcome = _call_wrongly(calls, lot)
    if outcome.endswith("taken"):
        _make_model.cache_clear()
        return outcome
    after = find_installed_step(model)
    assert after is before, "a refused call changed what is installed"
    assert (dict(after.batches.entries) if after else {}) == entries, "a refused call changed the plans"
    assert np.isfinite(model.train_on_batch(np.ones((64, 8), "float32"), np.ones((64, 1), "float32")))
    return outcome


def _call_wrongly(calls: Mapping[Callable[..., Any], dict[str, Any]], lot: random.Random) -> str:
    function = lot.choice(list(calls))
    arguments = dict(calls[function])
    name, junk = lot.choice(list(arguments)), lot.choice(_JUNK)
    arguments[name] = junk
    # What comes first may also be given by its place.
    kinds = inspect.signature(function).parameters.values()
    first = [arguments.pop(kind.name) for kind in kinds if kind.kind == kind.POSITIONAL_OR_KEYWORD]
    began_s = time.perf_counter()
    what = f"{function.__name__}({name}={type(junk).__name__})"
    outcome = "taken"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*first, **arguments)
        except CheckmateError:
            outcome = "refused"
        except Exception as error:
            raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
    took_s = time.perf_counter() - began_s
    assert took_s < _MOST_SECONDS, f"{what} took {took_s:.1f} s"
    return f"{function.__name__.removeprefix('_make_')} {outcome}"


def _make_node(**fields: Any) -> None:
    Graph((Node(**fields),), (Value("y", 4),))


def _make_value(**fields: Any) -> None:
    Graph((Node("a", "Relu", (), (0,), 1),), (Value(**fields),))


def _make_schedule(**fields: Any) -> None:
    graph = Graph((Node("a", "Relu", (), (0,), 1),), (Value("y", 4),))
    checkmate_tf.simulate(graph, Schedule(**fields))


@cache
def _make_function() -> tuple[Any, Any]:
    import tensorflow as tf

    weights = tf.Variable(tf.eye(8))

    def compute_gradients(x: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = x
            for _ in range(6):
                hidden = tf.tanh(hidden @ weights)
        return tape.gradient(hidden, weights)

    return tf.function(compute_gradients).get_concrete_function(tf.TensorSpec((64, 8))), weights


@cache
def _make_model(is_planned: bool) -> Any:
    import keras

    layers = [keras.layers.Dense(8, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    if is_planned:
        with suppress(CheckmateError):
            checkmate_tf.rematerialize(
                model,
                batch_size=64,
                budget="90%",
                measure=False,
                options=checkmate_tf.Options(costs="flops"),
                progress=False,
                time_limit_s=0.5,
            )
    return model
