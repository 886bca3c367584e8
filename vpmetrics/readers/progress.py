"""The terminal: results on standard output, progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vpmetrics._util.inputs import shorten
from vpmetrics._util.scalar import printable

_SECONDS_BETWEEN_LINES = 2.0

SetDone = Callable[[float], None]


class RaisingConsole(Console):
    """A console that raises BrokenPipeError when its reader stops.

    Rich would end the process with status 1.
    """

    def on_broken_pipe(self) -> NoReturn:
        """Raise BrokenPipeError, for which `main` returns 141."""
        raise BrokenPipeError


@contextmanager
def show_progress(text: str, total: float | None = None) -> Iterator[SetDone]:
    """Show the progress of a task: a bar on a terminal, else a line every few seconds.

    The yielded function takes how much of ``total`` is done so far.
    """
    console = Console(stderr=True)
    text = shorten(printable(text))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(escape(text), total=total)
        last = time.monotonic()

        def set_done(done: float) -> None:
            nonlocal last
            bar.update(task, completed=done)
            if not console.is_terminal and time.monotonic() - last > _SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                state = bar.tasks[0]
                line = f"{text}: {state.percentage:.0f}%"
                if state.time_remaining:
                    line += f", {state.time_remaining:.0f} s left"
                print(line, file=sys.stderr, flush=True)

        yield set_done
