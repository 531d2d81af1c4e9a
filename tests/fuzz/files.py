"""Graph, schedule and cache files with something changed: each is read, or refused in its own way."""

import copy
import json
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checkmate_tf.errors import GraphError, ScheduleError
from checkmate_tf.profiling.cache import DeviceKey, Measurement, ProfileCache
from checkmate_tf.schedule import check_schedule
from checkmate_tf.serialization import graph_from_json, graph_to_json, load_graph, load_schedule
from checkmate_tf.simulator import find_peak_bound, simulate, simulate_stock
from tests.fuzz.problems import random_graph

_JUNK: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 10**14, 10**14 + 1, 2**63, 10**400, -(2**70), 0.5, 1e300,
    float("nan"), float("inf"), "", "name", "0", "\ud800", "\u0000", [], [0], [[0]], [0, 0], {}, {"name": "a"},
)  # fmt: skip


def check_graph_file(seed: int) -> str:
    """Raises unless a changed graph file is refused by a GraphError or makes a graph that is written as it was read."""
    lot = random.Random(seed)
    data = _mutate(random_graph(lot, max_nodes=6), lot)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.json")
        path.write_bytes(_damage(json.dumps(data).encode(), lot))
        try:
            graph = load_graph(path)
        except GraphError:
            return "refused"
    assert graph_from_json(json.loads(json.dumps(graph_to_json(graph)))) == graph
    assert simulate_stock(graph).peak_bytes >= find_peak_bound(graph).peak_bytes
    return "read"


def check_schedule_file(seed: int) -> str:
    """Raises unless a changed schedule file is refused by a ScheduleError or can be simulated."""
    lot = random.Random(seed)
    graph = graph_from_json(random_graph(lot, max_nodes=6))
    order = list(range(len(graph.nodes)))
    for _ in range(lot.randint(0, 3)):
        order.insert(lot.randint(1, len(order)), lot.choice(order))
    data = _mutate({"format": "checkmate-schedule/1", "graph": "random", "order": order, "fetches": []}, lot)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "schedule.json")
        path.write_bytes(_damage(json.dumps(data).encode(), lot))
        try:
            schedule = load_schedule(path)
            check_schedule(graph, schedule)
        except ScheduleError:
            return "refused"
    assert simulate(graph, schedule).cost >= graph.baseline_cost
    return "read"


def check_cache_file(seed: int) -> str:
    """Raises unless a damaged profile cache is read, or set aside as it was, with a warning; and then is of use."""
    lot = random.Random(seed)
    key = DeviceKey("cpu", "2.21", "")
    kept = [Measurement(f"s{index}", "op", 1.0 * index, 0.1, 5, None, 1.0) for index in range(lot.choice((0, 3, 200)))]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        path = Path(folder, "profiles.sqlite")
        with ProfileCache(path) as cache:
            cache.add(key, kept)
        damaged = bytearray(path.read_bytes())
        for _ in range(lot.randint(1, 4)):
            begin = lot.choice((lot.randrange(100), lot.randrange(len(damaged))))
            length = lot.choice((1, 1, 4, 100))
            damaged[begin : begin + length] = lot.choice((lot.randbytes(length), bytes(length), b"\xff" * length))
        if lot.random() < 0.2:
            del damaged[lot.randrange(len(damaged)) :]
        path.write_bytes(damaged)
        with ProfileCache(path) as cache:
            found = cache.load(key)
            cache.export()
            assert (
                cache.get_or_measure(key, "new", lambda: Measurement("new", "op", 2.0, 0.1, 5, 0, 1.0))[0].cost_ns
                == 2.0
            )
        assert all(isinstance(entry.cost_ns, float) for entry in found.values())
        aside = list(Path(folder).glob("*.bad-*[0-9]"))
        assert not aside or aside[0].read_bytes() == damaged
    return "set aside" if aside else "read"


def _mutate(data: dict[str, Any], lot: random.Random) -> dict[str, Any]:
    """Changes up to three places of the object."""
    data = copy.deepcopy(data)
    for _ in range(lot.randint(0, 3)):
        holder, key = lot.choice(list(_places(data)))
        change = lot.randrange(4)
        if change == 0:
            del holder[key]
        elif change == 1 and isinstance(holder[key], int):
            holder[key] += lot.choice((-1, 1, 2))
        elif change == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(lot.choice(holder)))
        else:
            holder[key] = copy.deepcopy(lot.choice(_JUNK))
        if not data:
            break
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(data) if isinstance(data, dict) else range(len(data)):
        yield data, key
        if isinstance(data[key], (dict, list)):
            yield from _places(data[key])


def _damage(text: bytes, lot: random.Random) -> bytes:
    """Mostly leaves the text; else cuts it short, or changes a byte."""
    if lot.random() < 0.8 or not text:
        return text
    place = lot.randrange(len(text))
    return text[:place] if lot.random() < 0.5 else text[:place] + bytes([lot.randrange(256)]) + text[place + 1 :]
