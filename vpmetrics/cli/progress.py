"""The terminal: results on standard output, progress on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from vpmetrics.cli.errors import printable, shorten

_SECONDS_BETWEEN_LINES = 2.0

Advance = Callable[[float], None]


class ResultConsole(Console):
    """A console that raises BrokenPipeError when its reader stops; Rich would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        """Let the command decide how to end."""
        raise BrokenPipeError


@contextmanager
def show_progress(text: str, total: float | None = None) -> Iterator[Advance]:
    """Show what is being done: a bar on a terminal, else a line every few seconds.

    Args:
        text: What is being done.
        total: How much there is to do, if known. The function yielded takes how much of it is done.
    """
    console, text = Console(stderr=True), shorten(printable(text))
    if not console.is_terminal:
        yield _print_lines(text, total)
        return
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(escape(text), total=total)
        yield lambda done: bar.update(task, completed=done)


def _print_lines(text: str, total: float | None) -> Advance:
    began = last = time.monotonic()

    def advance(done: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _SECONDS_BETWEEN_LINES:
            return
        last, share = now, done / total if total else 0.0
        left = f": {share:.0%}, {(now - began) * (1 / share - 1):.0f} s left" if share else f": {now - began:.0f} s"
        print(text + left, file=sys.stderr, flush=True)

    return advance
