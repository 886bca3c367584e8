"""How often 95 % intervals cover the true value: jackknife, bootstrap, and trials taken as independent."""

from __future__ import annotations

import pytest

from bench.interval_coverage import (
    AnonymisedPopulation,
    TrialPopulation,
    cover_attacks,
    cover_scores,
    cover_suite,
    score_bootstrap,
    score_independent,
    score_jackknife,
    suite_bootstrap,
    suite_jackknife,
)

pytestmark = pytest.mark.bench

SETS = 500  # the standard error of a coverage of 0.95 is 0.01
SETS_WITH_ATTACKS = 300
TRIALS = {
    "weak": TrialPopulation(0.35),
    "strong": TrialPopulation(1.0),
    "uneven": TrialPopulation(0.6, uneven=True),
    "sessions": TrialPopulation(0.6, sessions=0.5),
}
SYSTEMS = {
    "strong": AnonymisedPopulation(kept=0.15),
    "weak": AnonymisedPopulation(kept=0.6),
    "uneven": AnonymisedPopulation(kept=0.3, uneven=True),
    "sessions": AnonymisedPopulation(kept=0.3, sessions=2),
}
CASES = [(20, "weak"), (20, "strong"), (40, "weak"), (40, "strong"), (100, "weak"), (100, "strong")]
CASES += [(40, "uneven"), (40, "sessions")]


@pytest.mark.parametrize(("speakers", "kind"), CASES)
def test_coverage_of_score_metrics(speakers, kind):
    coverage = cover_scores(TRIALS[kind], speakers, SETS, [score_jackknife, score_bootstrap])
    print(f"\n{speakers} speakers, {kind}\n{coverage.table()}")
    for method in ("score_jackknife", "score_bootstrap"):
        for key in ("d_ece", "eer", "min_cllr", "cllr"):
            assert 0.9 <= coverage.share(method, key) <= 0.995, (method, key)


@pytest.mark.parametrize("kind", TRIALS)
def test_intervals_of_independent_trials_are_too_narrow(kind):
    coverage = cover_scores(TRIALS[kind], 40, 100, [score_independent])
    print(f"\n40 speakers, {kind}\n{coverage.table()}")
    assert max(coverage.share("score_independent", key) for key in ("d_ece", "eer", "min_cllr", "cllr")) < 0.85


@pytest.mark.parametrize(("speakers", "kind"), CASES)
def test_coverage_of_the_suite(speakers, kind):
    methods = [suite_jackknife, suite_bootstrap] if speakers < 100 else [suite_jackknife]
    coverage = cover_suite(SYSTEMS[kind], speakers, SETS, methods)
    print(f"\n{speakers} speakers, {kind}\n{coverage.table()}")
    for key in coverage.true_values:
        assert coverage.share("suite_jackknife", key) >= 0.9, key


@pytest.mark.parametrize(("speakers", "kind"), [*CASES[:4], *CASES[6:]])
def test_coverage_of_disclosure_and_the_strongest_attack(speakers, kind):
    coverage = cover_attacks(SYSTEMS[kind], speakers, SETS_WITH_ATTACKS)
    print(f"\n{speakers} speakers, {kind}\n{coverage.table()}")
    for key in coverage.true_values:
        assert coverage.share("suite_jackknife", key) >= 0.9, key
