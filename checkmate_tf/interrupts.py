"""Holds interrupts back while something is under way that must not be left half done."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def hold_interrupts() -> Iterator[Callable[[], None]]:
    """Lets an interrupt wait until the block has ended; calling what it gives lets a waiting one through before.

    Only the main thread is interrupted, so in others there is nothing to hold.
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
