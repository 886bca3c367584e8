"""Identification at scale compared with the bare matrix products.

And with the package of the rates' authors.
"""

import time

import pytest
import torch
from extras import import_or_skip
from samples import people

from bench.timing import afresh, in_turns, peak_megabytes, ratio, report
from vpmetrics import ReidentificationRate, SinglingOut
from vpmetrics.functional import identify, rank_histogram

legal_eval = import_or_skip("legal_eval")
metrics = import_or_skip("legal_eval.metrics")

pytestmark = pytest.mark.bench

EACH, SIZES = 5, (20, 100, 1000)


def voices(number, each):
    rows, _, speakers = people(number=number, each=each, width=192, noise=1.5, dtype=torch.float32)
    return rows, speakers


def test_twenty_thousand_people_cost_at_most_two_products():
    rows, speakers = voices(20_000, 1 + EACH)
    is_reference = torch.arange(len(rows)) % (1 + EACH) == 0
    metric = ReidentificationRate(validate_args=False)
    metric.update(protected=rows, speakers=speakers, is_reference=is_reference)

    def products():
        for part in rows[~is_reference].split(64):
            part @ rows[is_reference].T

    assert (
        ratio("20000 people x 5", lambda: afresh(metric), "the products", products, repeat=2) <= 2
    )


def test_five_thousand_people_cost_no_more_than_the_peer_needs():
    number = 5000
    rows, speakers = voices(number, EACH)

    def ours(metric):
        metric.update(
            protected=rows, speakers=speakers, is_reference=torch.arange(len(rows)) % EACH < 3
        )
        return metric.compute()

    embeddings = dict(enumerate(rows.double().numpy()))
    known = {n: [n * EACH + i for i in range(3)] for n in range(number)}
    others = {n: [n * EACH + 3, n * EACH + 4] for n in range(number)}

    def peer_rate():
        models = legal_eval.build_speaker_embeddings(known, embeddings)
        probes = {
            utterance: embeddings[utterance] for mine in others.values() for utterance in mine
        }
        matrix = legal_eval.cosine_score_matrix(models, probes)
        whose = [n for n, mine in others.items() for _ in mine]
        beaters = metrics.count_beaters(matrix, whose)
        for size in SIZES:
            legal_eval.linkability(
                matrix, size, test_speakers=whose, estimator="exact", beaters=beaters
            )

    def peer_singling_out():
        models = legal_eval.build_speaker_embeddings(known, embeddings)
        scores = metrics.score_conversations(
            models, legal_eval.build_conversations(others, embeddings, 1)
        )
        for size in SIZES:
            metrics.singling_out(scores, size)

    for metric, peer in (
        (ReidentificationRate(SIZES), peer_rate),
        (SinglingOut(SIZES), peer_singling_out),
    ):
        times = [time.perf_counter()]
        for run in (peer, lambda metric=metric: ours(metric)):
            run()
            times.append(time.perf_counter())
        seconds = times[2] - times[1], times[1] - times[0]
        assert (
            report(
                f"{type(metric).__name__}, {number} people", seconds[0], "the peer's", seconds[1]
            )
            <= 1
        )


@pytest.mark.parametrize("metric", ["ReidentificationRate", "SinglingOut"])
def test_memory_grows_with_the_utterances_not_with_their_pairs(metric):
    """Of 25,000 utterances 192 numbers each are 19 MB, and the scores of all pairs 2,500 MB."""
    used = {}
    for number in (2500, 5000):
        setup = f"""
import torch
from samples import people
from vpmetrics import ReidentificationRate, SinglingOut
rows, _, speakers = people(number={number}, each=5, width=192, dtype=torch.float32)
warm = {metric}((20,))
warm.update(protected=rows[:200], speakers=speakers[:200])
warm.compute()
"""
        work = (
            f"one = {metric}((20, 1000)); one.update(protected=rows, speakers=speakers);"
            " one.compute()"
        )
        used[number] = peak_megabytes(setup, work)
    print(
        f"\n{metric}: "
        + ", ".join(f"{number} people x 5: +{size:.0f} MB" for number, size in used.items())
    )
    assert used[5000] < 250
    assert used[5000] < 2.3 * used[2500] + 20


def test_identification_costs_little_more_than_the_products():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(100_000, 192, generator=generator)
    speakers = torch.randint(0, 10_000, (100_000,), generator=generator)
    references = torch.randn(10_000, 192, generator=generator), torch.arange(10_000)

    def products():
        for part in inputs.split(64):
            part @ references[0].T

    runs = {
        "bare products": products,
        "ranks, disjoint references": lambda: rank_histogram(inputs, speakers, *references),
        "ranks, leave-one-out": lambda: rank_histogram(inputs, speakers),
        "ranks and local information": lambda: identify(inputs, speakers, *references, slope=1.5),
        "the same with a slope cross-fitted": lambda: identify(inputs, speakers, *references),
    }
    seconds = in_turns(runs, repeat=3)
    for name in list(runs)[1:]:
        # A cross-fitted slope takes a pass of its own.
        assert report(name, seconds[name], "bare products", seconds["bare products"]) <= (
            4 if "fitted" in name else 2
        )
