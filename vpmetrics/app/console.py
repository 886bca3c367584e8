"""Where results are printed."""

from __future__ import annotations

from rich.console import Console


class ResultConsole(Console):
    """Leaves it to the command how to end when nobody reads on; Rich would end the process with status 1."""

    def on_broken_pipe(self) -> None:
        """Nobody reads on."""
        raise BrokenPipeError
