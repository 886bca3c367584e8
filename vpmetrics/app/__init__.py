"""The command line: ``vpmetrics evaluate``, ``vpmetrics compare`` and ``vpmetrics demo``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from vpmetrics.app.interrupts import INTERRUPTED, ending_at_once

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments of the command line; those of the process when left out.

    Returns:
        0 when done, 2 when options or files cannot be used, say nothing, or no command is given, which prints the help.
        As a shell has it, 130 when interrupted, and 141 when whoever read the output stopped.
    """
    # Threads that spin while they wait for a core that is busy cost many times the work; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with ending_at_once():
        from vpmetrics.app.options import parser

        arguments = parser()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no Unicode still shows the numbers
    options = arguments.parse_args(argv)
    options.argv = tuple(sys.argv[1:] if argv is None else argv)
    if options.command is None:
        arguments.print_help()
        return 2
    try:
        status = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still to be flushed at exit goes nowhere, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


def _run(options: Namespace) -> int:
    from vpmetrics.app.errors import InputError, printable

    try:
        # What a command needs is imported when it runs, so that --help is quick.
        with ending_at_once():
            from importlib import import_module

            from vpmetrics.app.console import ResultConsole
            from vpmetrics.app.files import forget_seen

            command = getattr(import_module(f"vpmetrics.app.{options.command}"), options.command)
        forget_seen()
        command(options, ResultConsole(soft_wrap=False))
    except InputError as error:
        print(f"vpmetrics {options.command}: error: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"vpmetrics needs {printable(str(error.name))}: pip install 'vpmetrics[app]'", file=sys.stderr)
    else:
        return 0
    return 2
