"""Requests to stop, held back until what must not be cut in two is whole."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PATIENCE = 5.0
"""Seconds that a block has to end by itself."""


@dataclass
class Request:
    """Whether someone wants the block to end."""

    made: bool = False


@contextmanager
def held_back() -> Iterator[Request]:
    """Within the block, Ctrl-C and SIGTERM only say so, to be asked for when the block sees fit.

    KeyboardInterrupt is raised in the middle of the block after all where it has not ended PATIENCE seconds later, and
    at once by a second Ctrl-C. A second SIGTERM is the same request again: a cluster sends one to each process of a
    job, and the pool among them passes its own on. A signal that is ignored, as Ctrl-C is by the workers of a sweep,
    stays so.

    Raises:
        KeyboardInterrupt: at the end of a block that had been asked to end, and has not said so itself.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():  # where Python takes no signals
        yield request
        return

    def ask(number: int, frame: Any) -> None:
        if request.made:
            if number == signal.SIGTERM:
                return
            raise KeyboardInterrupt("interrupted")
        request.made = True
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)

    def insist(number: int, frame: Any) -> None:
        raise KeyboardInterrupt("interrupted")

    before = {signal.SIGALRM: signal.signal(signal.SIGALRM, insist)}
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, ask)
    try:
        yield request
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
    if request.made:
        raise KeyboardInterrupt("interrupted")


@contextmanager
def ending() -> Iterator[None]:
    """Within the block, Ctrl-C ends the process at once: for as long as it imports, with nothing under way.

    An exception would come up in the middle of a library's own code, which may abort, or make another error of it.
    """

    def end(number: int, frame: Any) -> None:
        print("interrupted", file=sys.stderr, flush=True)
        os._exit(130)

    with _on_ctrl_c(end):
        yield


def ending_at_exit() -> None:
    """Once the interpreter exits, Ctrl-C ends the process at once: libraries take seconds to tear themselves down, and
    an exception in there comes out as a traceback.

    To be called last: what is registered last comes first.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)


@contextmanager
def raising() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt, also within `ending`."""
    with _on_ctrl_c(signal.default_int_handler):
        yield


@contextmanager
def _on_ctrl_c(handler: Any) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
