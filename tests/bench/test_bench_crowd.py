"""Re-identification in a population compared with the bare matrix product and with the package of its authors.

Run with ``pytest -m bench -s tests/bench/test_bench_crowd.py``.
"""

from __future__ import annotations

import inspect
import math
import time

import legal_eval
import pytest
import torch
from legal_eval import metrics

from bench.timing import in_turns, peak_megabytes, report
from vpmetrics import ReidentificationRate, SinglingOut

pytestmark = pytest.mark.bench

EACH, SIZES = 5, (20, 100, 1000)


def people(number, each, width=192):
    """Return embeddings of some people, and the speaker of each."""
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(number, 1, width, generator=draw) + 1.5 * torch.randn(number, each, width, generator=draw)
    return rows.flatten(0, 1), torch.arange(number).repeat_interleave(each)


def test_twenty_thousand_people_cost_at_most_two_products():
    number = 20_000
    rows, speakers = people(number, 1 + EACH)
    is_reference = torch.arange(len(rows)) % (1 + EACH) == 0
    references, probes = rows[is_reference], rows[~is_reference]
    metric = ReidentificationRate(validate_args=False)
    metric.update(protected=rows, speakers=speakers, is_reference=is_reference)

    def bare():
        for part in probes.split(64):
            part @ references.T

    def ours():
        metric._computed = None
        return metric.compute()

    seconds = in_turns({"bare": bare, "ours": ours}, repeat=2)
    ratio = report(f"{number} people x {EACH} against {number}", seconds["ours"], "the products", seconds["bare"])
    assert ratio <= 2


def test_five_thousand_people_cost_no_more_than_the_peer_needs():
    number = 5000
    rows, speakers = people(number, EACH)
    is_reference = torch.arange(len(rows)) % EACH < 3
    found = {"rate": ReidentificationRate(SIZES), "singling out": SinglingOut(SIZES)}

    def ours(name):
        metric = found[name]
        metric.reset()
        metric.update(protected=rows, speakers=speakers, is_reference=is_reference)
        return metric.compute()

    embeddings = dict(enumerate(rows.double().numpy()))
    known = {n: [n * EACH + i for i in range(3)] for n in range(number)}
    others = {n: [n * EACH + 3, n * EACH + 4] for n in range(number)}

    def peer_rate():
        models = legal_eval.build_speaker_embeddings(known, embeddings)
        probes = {utterance: embeddings[utterance] for mine in others.values() for utterance in mine}
        matrix = legal_eval.cosine_score_matrix(models, probes)
        whose = [n for n, mine in others.items() for _ in mine]
        beaters = metrics.count_beaters(matrix, whose)
        return {
            size: legal_eval.linkability(matrix, size, test_speakers=whose, estimator="exact", beaters=beaters)[0]
            for size in SIZES
        }

    def peer_singling_out():
        models = legal_eval.build_speaker_embeddings(known, embeddings)
        scores = metrics.score_conversations(models, legal_eval.build_conversations(others, embeddings, 1))
        return {size: metrics.singling_out(scores, size) for size in SIZES}

    for name, peer in (("rate", peer_rate), ("singling out", peer_singling_out)):
        start = time.perf_counter()
        peer()
        between = time.perf_counter()
        ours(name)
        seconds = time.perf_counter() - between, between - start
        report(f"{name}, {number} people x {EACH}", seconds[0], "the peer's", seconds[1])
        assert seconds[0] <= seconds[1]


@pytest.mark.parametrize("metric", ["ReidentificationRate", "SinglingOut"])
def test_memory_grows_with_the_utterances_not_with_their_pairs(metric):
    """Of 25,000 utterances 192 numbers each are 19 MB, and the scores of all pairs 2,500 MB."""
    used = {}
    for number in (2500, 5000):
        setup = f"""
import torch
from vpmetrics import ReidentificationRate, SinglingOut
{inspect.getsource(people)}
rows, speakers = people({number}, 5)
warm = {metric}((20,))
warm.update(protected=rows[:200], speakers=speakers[:200])
warm.compute()
"""
        work = f"one = {metric}((20, 1000)); one.update(protected=rows, speakers=speakers); one.compute()"
        used[number] = peak_megabytes(setup, work)
    print(f"\n{metric}: " + ", ".join(f"{number} people x 5: +{size:.0f} MB" for number, size in used.items()))
    assert used[5000] < 250
    assert used[5000] < 2.3 * used[2500] + 20


def test_singling_out_cost_for_twenty_thousand_people():
    number = 20_000
    rows, speakers = people(number, 4)
    metric = SinglingOut(sizes=(1000, number), draws=2)
    metric.update(protected=rows, speakers=speakers)
    start = time.perf_counter()
    values = metric.compute()
    print(f"\n{number} people x 4, one of 1,000 and of {number} singled out: {time.perf_counter() - start:.1f} s")
    assert all(value.isfinite() for value in values.values())
    # Disjoint references of two, conversations of one, a voice three times as weak as the noise of two: some are.
    assert values["singling_out_1000"] > math.exp(-1)
