"""The command line: ``vpmetrics evaluate``, ``compare``, ``embed`` and ``demo``."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

_MODULES = {"evaluate": "evaluate", "compare": "evaluate", "embed": "audio_inputs", "demo": "demo"}
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # the exit statuses of shells


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments of the command line; those of the process when left out.

    Returns:
        0 when done; 2 when options or files cannot be used, when no number is defined, or after printing the help
        because no command is given. As in shells, 130 when interrupted, and 141 when the reader of the output stops.
    """
    # Threads that spin while they wait for a busy core slow it down many times. OpenMP reads this when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from vpmetrics.cli.options import make_parser

    parser = make_parser()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that knows no Unicode still shows the numbers
    options = parser.parse_args(argv)
    options.argv = tuple(sys.argv[1:] if argv is None else argv)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        status = _run_printing_errors(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status


def _run_printing_errors(options: Namespace) -> Literal[0, 2]:
    """Run a command; return 0, or print an error that the user can correct and return 2."""
    try:
        # What a command needs is imported when it runs, so that --help is quick.
        from vpmetrics._util.inputs import InputError, describe_error, read_files
        from vpmetrics._util.scalar import printable
        from vpmetrics.readers.progress import RaisingConsole

        command = getattr(import_module(f"vpmetrics.cli.{_MODULES[options.command]}"), options.command)
        options.argv = tuple(map(printable, options.argv))
        read_files.clear()
        command(options, RaisingConsole(soft_wrap=False))
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if str(error.name).startswith("vpmetrics"):
            raise
        extra = "audio" if error.name in ("soundfile", "resemblyzer") else "cli"
        print(f"vpmetrics needs {error.name}: pip install 'vpmetrics[{extra}]'", file=sys.stderr)
    except (InputError, OSError) as error:
        # The user can correct what the system rejects, such as a file name that is too long.
        text = error if isinstance(error, InputError) else describe_error(error)
        print(f"vpmetrics {options.command}: error: {text}", file=sys.stderr)
    else:
        return 0
    return 2
