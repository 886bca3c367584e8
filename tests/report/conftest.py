"""The fixtures of the command line, which these tests use as well."""

from cli.conftest import (
    all_figures,
    assert_same_as_suite,
    evaluate,
    evaluate_challenge,
    evaluate_scores,
    libri,
    libri_measures,
    some_figures,
    voices,
)

__all__ = [
    "all_figures",
    "assert_same_as_suite",
    "evaluate",
    "evaluate_challenge",
    "evaluate_scores",
    "libri",
    "libri_measures",
    "some_figures",
    "voices",
]
