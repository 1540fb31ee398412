"""Requests to stop, held back until what must not be cut in two is whole."""

import signal
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
    at once by a second signal. A signal that is ignored, as Ctrl-C is by the workers of a sweep, stays so.

    Raises:
        KeyboardInterrupt: at the end of a block that had been asked to end, and has not said so itself.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():  # where Python takes no signals
        yield request
        return

    def ask(number: int, frame: Any) -> None:
        if request.made:
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
