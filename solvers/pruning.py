"""Drops the recomputations of a schedule that its budget does not need: a pass that any solver can use.

A removed repeat leaves the copy before it to be retained until the last use of the copy that it made.
Repeats are tried in order of the cost saved per byte and step of that longer retention, until a pass removes less
than one in a hundred of them; memory is kept exactly as `simulate` counts it, in-place outputs included.
"""

from bisect import bisect_left, bisect_right, insort
from time import perf_counter

from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule
from checkmate_tf.simulator import simulate

_REMOVED_BYTES = 1 << 60


def prune(graph: Graph, schedule: Schedule, budget_bytes: int, *, deadline_s: float = float("inf")) -> Schedule:
    """A schedule of at most the cost of `schedule`, its peak at most `budget_bytes` if that of `schedule` is.

    Recomputations are only removed, never moved, so first computations keep their order. `deadline_s`
    is a time of `time.perf_counter()` at which to stop with what has been removed so far.
    """
    state = _Pruning(graph, schedule, budget_bytes)
    worthwhile = True
    while worthwhile and perf_counter() < deadline_s:
        repeats = state.repeats_by_value()
        num_removed = 0
        for step in repeats:
            if perf_counter() > deadline_s:
                break
            num_removed += state.try_to_remove(step)
        worthwhile = 100 * num_removed > len(repeats)
    return Schedule(tuple(node for step, node in enumerate(schedule.order) if not state.removed[step]))


class _Pruning:
    """Where each value is computed and read, and the memory of every step, as repeats are removed."""

    def __init__(self, graph: Graph, schedule: Schedule, budget_bytes: int):
        self.graph = graph
        self.order = schedule.order
        self.budget_bytes = budget_bytes
        self.sizes = graph.sizes_bytes.tolist()
        self.removed = [False] * len(schedule)
        self.memory = simulate(graph, schedule).memory_bytes
        self.outputs = frozenset(graph.outputs)
        self.computed: list[list[int]] = [[] for _ in graph.values]
        self.read: list[list[int]] = [[] for _ in graph.values]
        for step, node in enumerate(schedule.order):
            for value in graph.nodes[node].outputs:
                self.computed[value].append(step)
            for value in graph.nodes[node].inputs:
                self.read[value].append(step)

    def repeats_by_value(self) -> list[int]:
        """The steps that repeat a node, those first that save the most per byte and step retained longer."""
        seen: set[int] = set()
        ranked = []
        for step, node in enumerate(self.order):
            if self.removed[step]:
                continue
            if node in seen:
                held = sum(self.sizes[value] * (step - self.end(value, step - 1)) for value in self._outputs(step))
                ranked.append((-self.graph.nodes[node].cost / (held + 1), -step))
            seen.add(node)
        return [-step for _, step in sorted(ranked)]

    def end(self, value: int, step: int) -> int:
        """The last step that needs the copy of `value` that exists at `step`."""
        computed, read = self.computed[value], self.read[value]
        copy = bisect_right(computed, step)
        if copy == len(computed) and value in self.outputs:
            return len(self.order) - 1
        before = bisect_left(read, computed[copy]) if copy < len(computed) else len(read)
        start = computed[copy - 1]
        return max(start, read[before - 1]) if before else start

    def try_to_remove(self, step: int) -> bool:
        """Removes a repeat, and the repeats that only it needed, unless that breaks the budget."""
        if not self._try_one(step):
            return False
        unread = self._unread_inputs(step)
        while unread:
            copy = unread.pop()
            if self._try_one(copy):
                unread += self._unread_inputs(copy)
        return True

    def _try_one(self, step: int) -> bool:
        if self.removed[step] or not self._may_fit(step):
            return False
        first = self._first_affected(step)
        memory = self.memory[first : step + 1].copy()
        self._remove(step)
        if self.memory[first:step].max(initial=0) <= self.budget_bytes:
            return True
        self._restore(step)
        self.memory[first : step + 1] = memory
        return False

    def _may_fit(self, step: int) -> bool:
        """False when the longer retention alone breaks the budget, before the inputs of `step` are freed."""
        node = self.graph.nodes[self.order[step]]
        freed_from = min((self._end_before(value, step) for value in node.inputs), default=step) + 1
        for value in node.outputs:
            if self._is_read(value, step):
                retained = self.memory[self.end(value, step - 1) + 1 : min(freed_from, step)]
                if retained.max(initial=0) + self.sizes[value] > self.budget_bytes:
                    return False
        return True

    def _remove(self, step: int) -> None:
        node = self.graph.nodes[self.order[step]]
        longer = {value: self.end(value, step - 1) for value in node.outputs if self._is_read(value, step)}
        unread = [self.end(value, step - 1) for value in node.outputs if value not in longer]
        shorter = {value: self._end_before(value, step) for value in node.inputs if self._dies(value, step)}
        taken_over = {at: self._taken_over(at) for at in (*longer.values(), *unread, *shorter.values())}
        for value in node.outputs:
            self.computed[value].remove(step)
        for value in node.inputs:
            self.read[value].remove(step)
        for value, end in longer.items():
            self.memory[end + 1 : step] += self.sizes[value]
        for value, end in shorter.items():
            self.memory[end + 1 : step] -= self.sizes[value]
        for at, before in taken_over.items():
            self.memory[at] += before - self._taken_over(at)
        self.memory[step] -= _REMOVED_BYTES
        self.removed[step] = True

    def _restore(self, step: int) -> None:
        node = self.graph.nodes[self.order[step]]
        self.removed[step] = False
        for value in node.outputs:
            insort(self.computed[value], step)
        for value in node.inputs:
            insort(self.read[value], step)

    def _unread_inputs(self, step: int) -> list[int]:
        """The repeats that computed the inputs of `step`, of whose values nothing is read any more."""
        unread = []
        for value in self.graph.nodes[self.order[step]].inputs:
            computed = self.computed[value]
            copy = computed[bisect_right(computed, step) - 1]
            if computed[0] != copy and not any(self._is_read(output, copy) for output in self._outputs(copy)):
                unread.append(copy)
        return unread

    def _is_read(self, value: int, step: int) -> bool:
        """Whether anything needs the copy of `value` computed at `step`."""
        return self.end(value, step) > step or (value in self.outputs and self.computed[value][-1] == step)

    def _outputs(self, step: int) -> tuple[int, ...]:
        return self.graph.nodes[self.order[step]].outputs

    def _first_affected(self, step: int) -> int:
        node = self.graph.nodes[self.order[step]]
        ends = [self.end(value, step - 1) for value in node.outputs]
        ends += [self._end_before(value, step) for value in node.inputs]
        return min(ends, default=step)

    def _end_before(self, value: int, step: int) -> int:
        """The last step before `step` that computes `value` or reads it."""
        computed, read = self.computed[value], self.read[value]
        start, position = computed[bisect_left(computed, step) - 1], bisect_left(read, step)
        return max(start, read[position - 1]) if position else start

    def _taken_over(self, step: int) -> int:
        """Bytes of a dying input that the in-place node at `step` takes over, as in `simulate`."""
        node = self.graph.nodes[self.order[step]]
        if self.removed[step] or not node.inplace or not node.outputs:
            return 0
        size = self.sizes[node.outputs[0]]
        dying = (self.sizes[value] == size and self._dies(value, step) for value in node.inputs)
        return size if any(dying) else 0

    def _dies(self, value: int, step: int) -> bool:
        kept = value in self.outputs and self.computed[value][-1] < step and step == len(self.order) - 1
        return not kept and self.end(value, step) == step
