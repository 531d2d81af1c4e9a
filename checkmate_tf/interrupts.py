"""Delays interrupts during work that must not end halfway."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hold_interrupts() -> Iterator[Callable[[], None]]:
    """Delays an interrupt until the block has ended. Yields a function that lets a delayed interrupt through earlier.

    Only the main thread is interrupted, so this has no effect in other threads.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: None
        return
    waiting: list[Any] = []

    def let_through() -> None:
        if waiting:
            handler(*waiting.pop())

    signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, handler)
        let_through()
