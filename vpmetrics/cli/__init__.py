"""The command line.

``vpmetrics evaluate``, ``compare``, ``scores``, ``challenge``, ``embed`` and ``demo``.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

# The exit statuses of shells.
_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments of the command line; those of the process when left out.

    Returns:
        0 when done; 2 when options or files cannot be used, when no number is defined, or after
        printing the help because no command is given. As in shells, 130 when interrupted, and 141
        when the reader of the output stops.
    """
    # Threads that spin while they wait for a busy core slow it down many times. OpenMP reads this
    # when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from vpmetrics.cli.parser import make_parser, reject_unknown_arguments

    parser = make_parser()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that knows no Unicode still shows the numbers
            stream.reconfigure(errors="replace")
    parsed, unknown = parser.parse_known_args(argv)
    if unknown:
        reject_unknown_arguments(parsed, unknown, parser)
    parsed.arguments = list(sys.argv[1:] if argv is None else argv)
    if parsed.command is None:
        parser.print_help()
        return 2
    try:
        status = _run_printing_errors(parsed)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return status


def _run_printing_errors(parsed: Namespace) -> Literal[0, 2]:
    """Run a command; return 0, or print an error that the user can correct and return 2."""
    try:
        # What a command needs is imported when it runs, so that --help is quick.
        from vpmetrics._util.inputs import InputError, describe_error, read_files
        from vpmetrics._util.scalar import printable
        from vpmetrics.cli.options import read_options
        from vpmetrics.readers.progress import RaisingConsole

        module = import_module(f"vpmetrics.cli.{parsed.command}")
        command = getattr(module, parsed.command)
        parsed.arguments = [printable(argument) for argument in parsed.arguments]
        read_files.clear()
        command(read_options(parsed.options_class, parsed), RaisingConsole(soft_wrap=False))
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        if str(error.name).startswith("vpmetrics"):
            raise
        extra = "cli"
        if error.name in ("soundfile", "resemblyzer"):
            extra = "audio"
        print(f"vpmetrics needs {error.name}: pip install 'vpmetrics[{extra}]'", file=sys.stderr)
    except (InputError, OSError) as error:
        # The user can correct what the system rejects, such as a file name that is too long.
        text = str(error)
        if not isinstance(error, InputError):
            text = describe_error(error)
        print(f"vpmetrics {parsed.command}: error: {text}", file=sys.stderr)
    else:
        return 0
    return 2
