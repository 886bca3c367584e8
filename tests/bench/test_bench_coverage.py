"""How often 95 % intervals cover the true value: jackknife, and trials taken as independent."""

import pytest

from bench.interval_coverage import (
    AnonymisedPopulation,
    TrialPopulation,
    cover,
    cover_attacks,
    score_independent,
    score_jackknife,
    suite_jackknife,
)

pytestmark = pytest.mark.bench

SETS = 500  # the standard error of a coverage of 0.95 is 0.01
SETS_WITH_ATTACKS = 300
KEYS = ("d_ece", "eer", "min_cllr", "cllr")
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
CASES = [(speakers, kind) for speakers in (20, 40, 100) for kind in ("weak", "strong")]
CASES += [(40, "uneven"), (40, "sessions")]


def show(coverage, speakers, kind):
    print(f"\n{speakers} speakers, {kind}\n{coverage.table()}")


@pytest.mark.parametrize(("speakers", "kind"), CASES)
def test_coverage_of_score_metrics(speakers, kind):
    show(coverage := cover(TRIALS[kind], speakers, SETS, [score_jackknife]), speakers, kind)
    for key in KEYS:
        assert 0.9 <= coverage.share("score_jackknife", key) <= 0.995, key


@pytest.mark.parametrize("kind", TRIALS)
def test_intervals_of_independent_trials_are_too_narrow(kind):
    show(coverage := cover(TRIALS[kind], 40, 100, [score_independent]), 40, kind)
    assert max(coverage.share("score_independent", key) for key in KEYS) < 0.85


@pytest.mark.parametrize(("speakers", "kind"), CASES)
def test_coverage_of_the_suite(speakers, kind):
    show(coverage := cover(SYSTEMS[kind], speakers, SETS, [suite_jackknife]), speakers, kind)
    for key in coverage.true_values:
        assert coverage.share("suite_jackknife", key) >= 0.9, key


@pytest.mark.parametrize(("speakers", "kind"), [case for case in CASES if case[0] < 100])
def test_coverage_of_disclosure_and_the_strongest_attack(speakers, kind):
    show(coverage := cover_attacks(SYSTEMS[kind], speakers, SETS_WITH_ATTACKS), speakers, kind)
    for key in coverage.true_values:
        assert coverage.share("suite_jackknife", key) >= 0.9, key
