"""The command line: ``vpmetrics evaluate``, ``compare``, ``embed`` and ``demo``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from vpmetrics.cli.interrupts import INTERRUPTED, ending_at_once

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments of the command line; those of the process when left out.

    Returns:
        0 when done, 2 when options or files cannot be used or define nothing, or when no command is given, which prints
        the help. As a shell has it, 130 when interrupted, and 141 when the reader of the output has stopped.
    """
    # Threads that spin while they wait for a core that is busy cost many times the work; read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    with ending_at_once():
        from vpmetrics.cli.errors import printable
        from vpmetrics.cli.options import make_parser

        parser = make_parser()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no Unicode still shows the numbers
    options = parser.parse_args(argv)
    options.argv = tuple(map(printable, sys.argv[1:] if argv is None else argv))
    if options.command is None:
        parser.print_help()
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
    from vpmetrics.cli.errors import InputError, printable, reason_of

    try:
        # What a command needs is imported when it runs, so that --help is quick.
        with ending_at_once():
            from importlib import import_module

            from vpmetrics.cli.inputs import forget_files
            from vpmetrics.cli.progress import ResultConsole

            command = getattr(import_module(f"vpmetrics.cli.{options.command}"), options.command)
        forget_files()
        command(options, ResultConsole(soft_wrap=False))
    except BrokenPipeError:
        raise
    except (InputError, OSError) as error:
        # Whatever a file system refuses, such as a name that is too long, is the user's to correct.
        text = error if isinstance(error, InputError) else reason_of(error)
        print(f"vpmetrics {options.command}: error: {text}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("vpmetrics"):
            raise
        extra = "audio" if error.name in ("soundfile", "resemblyzer") else "cli"
        print(f"vpmetrics needs {printable(str(error.name))}: pip install 'vpmetrics[{extra}]'", file=sys.stderr)
    else:
        return 0
    return 2
