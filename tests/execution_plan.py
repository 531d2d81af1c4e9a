"""Checkmate's execution plan (Algorithm 1) of a schedule, against which retention intervals are tested."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule, find_retention


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement is one line of Checkmate's execution plan (Algorithm 1).

    `register` tells the copies of a value apart: it counts the values computed so far.
    """

    action: Literal["compute", "fetch", "deallocate"]
    position: int
    node: int
    registers: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(f"%{register}" for register in self.registers)
        if self.action == "compute":
            return f"{names} = compute v{self.node}"
        return f"{names} = fetch" if self.action == "fetch" else f"deallocate {names}"


def list_statements(graph: Graph, schedule: Schedule) -> tuple[Statement, ...]:
    """Lists the statements of a schedule: Checkmate's execution plan (Algorithm 1), and fetches.

    Deallocations are as early as possible (end of section 4.9): after the last use of the copy.
    """
    intervals = find_retention(graph, schedule)
    by_start = np.lexsort((intervals.value, intervals.start))
    register = np.empty(len(by_start), dtype=np.int64)
    register[by_start] = np.arange(len(by_start))
    computed: list[list[int]] = [[] for _ in schedule.order]
    fetched: list[list[int]] = [[] for _ in schedule.order]
    freed: list[list[int]] = [[] for _ in schedule.order]
    outputs = set(graph.outputs)
    last = len(schedule) - 1
    for copy in by_start:
        started = fetched if intervals.fetched[copy] else computed
        started[intervals.start[copy]].append(int(register[copy]))
        kept = intervals.end[copy] == last and int(intervals.value[copy]) in outputs
        if not kept:
            freed[intervals.end[copy]].append(int(register[copy]))
    plan: list[Statement] = []
    for position, node in enumerate(schedule.order):
        plan.extend(Statement("fetch", position, node, (copy,)) for copy in fetched[position])
        plan.append(Statement("compute", position, node, tuple(computed[position])))
        plan.extend(Statement("deallocate", position, node, (copy,)) for copy in freed[position])
    return tuple(plan)
