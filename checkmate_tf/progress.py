"""The bar of a running solver. Bars go to standard error, and are shown on a terminal only."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

from checkmate_tf.graph import Graph
from checkmate_tf.solvers import Progress

_LAYOUT = "{desc} {n:.0f}/{total:.0f} s{postfix}"
_REFRESH_S = 0.5


@contextmanager
def solver_bar(
    graph: Graph, *, name: str, time_limit_s: float, shown: bool = True
) -> Iterator[Callable[[Progress], None]]:
    """The time that a solver has used, and its best schedule and bound; gives the `on_progress` of solve()."""
    disable = None if shown else True
    bar = tqdm(total=time_limit_s, desc=name, bar_format=_LAYOUT, file=sys.stderr, disable=disable, leave=False)
    with bar, _ticking(bar, time_limit_s):

        def show(progress: Progress) -> None:
            baseline = max(graph.baseline_cost, 1)
            bar.set_postfix_str(
                f"overhead {progress.cost / baseline - 1:.3%}, bound {progress.cost_lower_bound / baseline - 1:.3%}"
            )

        yield show


@contextmanager
def _ticking(bar: tqdm, most_s: float) -> Iterator[None]:
    """Moves a bar of seconds while the body runs, which may give no news for long."""
    if bar.disable:
        yield
        return
    ended = threading.Event()
    started = time.perf_counter()

    def tick() -> None:
        while not ended.wait(_REFRESH_S):
            bar.n = min(time.perf_counter() - started, most_s)
            bar.refresh()

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        ended.set()
        ticker.join()
