"""The command line: ``vpmetrics evaluate``, ``vpmetrics compare`` and ``vpmetrics demo``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: Arguments of the command line; those of the process when left out.

    Returns:
        0 when done, 2 when options or files cannot be used, say nothing, or no command is given, which prints the help.
    """
    from vpmetrics.app.errors import InputError
    from vpmetrics.app.options import parser

    arguments = parser()
    options = arguments.parse_args(argv)
    if options.command is None:
        arguments.print_help()
        return 2
    try:
        from rich.console import Console

        options.run(options, Console(soft_wrap=False))
    except InputError as error:
        print(f"vpmetrics {options.command}: error: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(f"vpmetrics needs {error.name}: pip install 'vpmetrics[app]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0
