"""The fixtures of the command line, which these tests use as well."""

from cli.conftest import *  # noqa: F403
