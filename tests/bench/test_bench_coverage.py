"""How often 95 % intervals hold the truth: from leaving speakers out, drawing them, and as if trials were apart."""

from __future__ import annotations

import pytest

from bench.interval_coverage import Population, System, cover_embeddings, cover_strongest, cover_trials

pytestmark = pytest.mark.bench

SETS = 500  # of which a share of 0.95 is off by 0.01, and twice that is nothing to wonder at
POPULATIONS = {
    "weak": Population(0.35),
    "strong": Population(1.0),
    "uneven": Population(0.6, uneven=True),
    "sessions": Population(0.6, sessions=0.5),
}
SYSTEMS = {
    "strong": System(kept=0.15),
    "weak": System(kept=0.6),
    "uneven": System(kept=0.3, uneven=True),
    "sessions": System(kept=0.3, sessions=2),
}
CASES = [(20, "weak"), (20, "strong"), (40, "weak"), (40, "strong"), (100, "weak"), (100, "strong")]
CASES += [(40, "uneven"), (40, "sessions")]


@pytest.mark.parametrize(("speakers", "kind"), CASES)
def test_intervals_of_trials(speakers, kind):
    ways = ["leaving out", "drawing"]
    found = cover_trials(POPULATIONS[kind], speakers, SETS, ways)
    print(f"\n{speakers} speakers, {kind}\n{found.table(ways)}")
    for way in ways:
        for key in ("d_ece", "eer", "min_cllr", "cllr"):
            assert 0.9 <= found.share(way, key) <= 0.995, (way, key)


@pytest.mark.parametrize("kind", POPULATIONS)
def test_trials_taken_as_independent_promise_too_much(kind):
    found = cover_trials(POPULATIONS[kind], 40, 100, ["independent"])
    print(f"\n40 speakers, {kind}\n{found.table(['independent'])}")
    assert max(found.share("independent", key) for key in ("d_ece", "eer", "min_cllr", "cllr")) < 0.85


@pytest.mark.parametrize(("speakers", "kind"), CASES)
def test_intervals_of_embeddings(speakers, kind):
    ways = ["suite", "drawing"] if speakers < 100 else ["suite"]
    found = cover_embeddings(SYSTEMS[kind], speakers, SETS, ways)
    print(f"\n{speakers} speakers, {kind}\n{found.table(ways)}")
    for key in found.truth:
        assert found.share("suite", key) >= 0.9, key


@pytest.mark.parametrize(("speakers", "kind"), CASES[:4])
def test_intervals_of_the_strongest_attack(speakers, kind):
    found = cover_strongest(SYSTEMS[kind], speakers, SETS)
    print(f"\n{speakers} speakers, {kind}\n{found.table(['suite'])}")
    for key in found.truth:
        assert found.share("suite", key) >= 0.9, key
