"""Systems with everything that figures show, each made once, and what is read from a figure."""

from dataclasses import replace

import pytest
import torch
from reports import make_report, make_trials, score_report
from samples import voices

from vpmetrics._util.validation import suppress_warnings
from vpmetrics.attacks import Plain, RidgeToOriginal
from vpmetrics.attacks.results import LearningCurve
from vpmetrics.report.privacy_report import EvaluatedSystem

ODDS = torch.linspace(-7, 7, 141, dtype=torch.float64)


def lines_of(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def with_learning_curve(result):
    """The result as if attacks had also been fitted on a quarter and half of its speakers."""
    number = int(result.num_fitted_speakers)
    value = result.measures["d_ece_strongest"]
    numbers = (number // 4, number // 2, number)
    curve = LearningCurve(numbers, (0.4 * value, 0.7 * value, value), 1.3 * value)
    return replace(result, curve=curve)


@pytest.fixture(scope="session")
def systems():
    made = []
    settings = {"sizes": (2, 40), "intervals": 0.9, "attacks": [Plain(), RidgeToOriginal()]}
    for number, leak in enumerate((0.5, 0.2, 0.8)):
        with suppress_warnings():  # of singling one out of 40
            report = make_report(voices(leak=leak, seed=number), **settings)
        for name in ("OP", "PP"):
            condition = report.conditions[name]
            strongest = with_learning_curve(condition.strongest)
            report.conditions[name] = replace(condition, strongest=strongest)
        sex = {"disclosure": 0.3 * number, "chance": 0.05, "original": 0.9}
        attributes = {
            "sex": {**sex, "disclosure_low": 0.1, "disclosure_high": 0.7},
            "age": {"disclosure": 0.1},
        }
        utility = {"WER [%]": 5.0 + number, "UAR [%]": 60.0 + number}
        named = {"attributes": attributes, "utility": utility}
        made.append(EvaluatedSystem(f"system {number}", report, **named))
    return made


@pytest.fixture(scope="session")
def scored():
    reports = [score_report(seed, fit=make_trials(seed + 1), intervals=0.9) for seed in range(2)]
    return [EvaluatedSystem(f"scores {number}", report) for number, report in enumerate(reports)]
