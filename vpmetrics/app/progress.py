"""Signs of life on the stream that is not the result: what is being done, how much of it, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vpmetrics.app.errors import printable

_EVERY = 2.0  # seconds between lines where nobody can see a bar move

Advance = Callable[[float], None]


@contextmanager
def phase(text: str, total: float | None = None) -> Iterator[Advance]:
    """Show a part of the work; what it yields is told how much is done.

    On a terminal there is a bar, else a line every few seconds.

    Args:
        text: What is being done.
        total: How much there is to do; None where that is unknown.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(printable(text), total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(printable(text)), total=total)
        yield lambda done: bar.update(task, completed=done)


def _lines(text: str, total: float | None) -> Advance:
    began = last = time.monotonic()

    def advance(done: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _EVERY:
            return
        last, share = now, done / total if total else 0.0
        left = f": {share:.0%}, {(now - began) * (1 / share - 1):.0f} s left" if share else f": {now - began:.0f} s"
        print(text + left, file=sys.stderr, flush=True)

    return advance
