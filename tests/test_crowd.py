"""Somebody among N people and one singled out: every set gone through, the peer's package, models, conversations."""

from __future__ import annotations

import math
from itertools import combinations

import legal_eval
import numpy as np
import pytest
import torch
from legal_eval import demo, metrics
from reference import crowd as reference
from scipy.stats import betabinom
from torch.testing import assert_close

from vpmetrics import ReidentificationRate, SinglingOut
from vpmetrics._plot_crowd import draw_over_utterances
from vpmetrics._trials.conversations import dealt_places
from vpmetrics._trials.utterances import row_keys
from vpmetrics.functional import (
    conversations,
    equal_error_rate,
    rank_histogram,
    reidentification_rate,
    singling_out,
)

UNDEFINED = "The result is NaN"


def people(seed=0, number=12, each=6, width=8, noise=1.0, dtype=torch.float64):
    """Original and protected embeddings of some people, and whose each is."""
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.arange(number).repeat_interleave(each) * 7 - 20
    voices = torch.randn(number, width, generator=draw, dtype=dtype).repeat_interleave(each, 0)
    original, protected = (voices + noise * torch.randn(voices.shape, generator=draw, dtype=dtype) for _ in range(2))
    return original, protected, speakers


def demo_corpus(number=60, each=12, anonymised=True):
    """The peer's own made corpus: half of everybody's utterances to enrol, half to test."""
    spk2utt, embeddings = demo.synthetic_corpus(number, each)
    enrolled, tested = demo.split_corpus(spk2utt, each // 2)
    return enrolled, tested, demo.simulate_anonymization(embeddings, 0.4) if anonymised else embeddings


def rates(values, prefix="rate_"):
    return {int(n): v.item() for k, v in values.items() if k.startswith(prefix) and (n := k[len(prefix) :]).isdigit()}


# --- Somebody among N people


@pytest.mark.parametrize("ties", [False, True])
def test_the_rate_is_the_mean_over_all_galleries(ties):
    draw = np.random.default_rng(1)
    scores = draw.integers(0, 4, (5, 9)).astype(float) if ties else draw.normal(size=(5, 9))
    # Rows of scores as dot products of probes with unit references.
    histogram = rank_histogram(
        torch.tensor(scores), torch.arange(5), torch.eye(9, dtype=torch.float64), torch.arange(9), scoring="dot"
    )
    found = rates(reidentification_rate(histogram, sizes=range(1, 10)))
    for size, value in found.items():
        expected = np.mean([reference.rate(row, own, size) for own, row in enumerate(scores)])
        assert value == pytest.approx(expected, abs=1e-12)


def test_a_rank_by_hand():
    # Rank 3 of 5: of 2 people, the other is one of the two better ones of four in half of all galleries.
    values = reidentification_rate(torch.tensor([0.0, 0.0, 10.0, 0.0, 0.0]), sizes=(1, 2, 3, 4))
    assert rates(values) == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 6, 4: 0})
    assert rates(values, "chance_") == pytest.approx({1: 1, 2: 1 / 2, 3: 1 / 3, 4: 1 / 4})
    assert values["gallery"] == 5


@pytest.mark.parametrize("references", [40, 20_000])
def test_ranks_that_say_nothing_are_found_by_chance_at_every_size(references):
    sizes = sorted({1, 2, 7, 40, references // 2, references - 1, references, 3 * references, 10**9})
    histogram = torch.full((references,), 3.0, dtype=torch.float64)
    values = reidentification_rate(histogram, sizes)
    for size in sizes:
        # What a fit leaves is left, beyond.
        assert values[f"rate_{size}"].item() * size == pytest.approx(1, abs=1e-9 if size <= references else 1e-4)


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 2.0), (0.8, 1.2), (0.05, 0.7)])
def test_beyond_the_references_ranks_that_follow_the_model_are_found_as_it_says(alpha, beta):
    histogram = torch.tensor(betabinom(199, alpha, beta).pmf(np.arange(200)))
    sizes = (2, 50, 200, 201, 1000, 100_000)
    for size, value in rates(reidentification_rate(histogram, sizes)).items():
        assert value == pytest.approx(reference.rate_beyond(alpha, beta, size), rel=2e-5), size


def test_the_curve_has_no_step_where_it_is_extrapolated_and_falls_no_faster_than_chance():
    original, protected, speakers = people(number=60, noise=1.5)
    histogram = rank_histogram(protected, speakers, original, speakers)
    sizes = range(40, 80)
    values = torch.stack([reidentification_rate(histogram, sizes)[f"rate_{size}"] for size in sizes])
    assert (values.diff() < 0).all()
    counted, extrapolated = values.diff()[19:21]
    assert 0.5 < extrapolated / counted < 2
    few = reidentification_rate(torch.tensor([6.0, 2.0, 0.0, 0.0]), sizes=(4, 4000))
    assert few["rate_4000"] >= few["rate_4"] / 1000


def test_extrapolated_voices_are_found_as_often_as_counted_ones_or_somewhat_more():
    draw = torch.Generator().manual_seed(5)
    voices = torch.randn(4000, 64, generator=draw)
    probes, references = (voices + 1.5 * torch.randn(voices.shape, generator=draw) for _ in range(2))
    everybody = torch.arange(4000)
    truth = reidentification_rate(rank_histogram(probes, everybody, references, everybody), (1000, 4000))
    few = everybody[:400]
    guess = reidentification_rate(rank_histogram(probes[few], few, references[few], few), (1000, 4000))
    assert truth["gallery"] == 4000
    assert guess["gallery"] == 400
    for name in ("rate_1000", "rate_4000"):
        assert 0.8 * truth[name] < guess[name] < 1.6 * truth[name]


def test_everybody_known_stays_known():
    values = reidentification_rate(torch.tensor([8.0, 0.0, 0.0]), sizes=(2, 3, 1000))
    assert rates(values) == {2: 1.0, 3: 1.0, 1000: 1.0}


@pytest.mark.parametrize("histogram", [[], [4.0], [0.0, 0.0, 0.0], [1.0, math.nan]])
def test_no_ranks_give_nan_and_one_warning(histogram):
    with pytest.warns(UserWarning, match=UNDEFINED) as warned:
        values = reidentification_rate(torch.tensor(histogram), sizes=(2, 100))
    assert all(value.isnan() for value in values.values())
    assert len(warned) == 1


def test_two_references_are_too_few_to_go_beyond():
    with pytest.warns(UserWarning, match="there are two"):
        values = reidentification_rate(torch.tensor([3.0, 1.0]), sizes=(2, 3))
    assert values["rate_2"] == 0.75
    assert values["rate_3"].isnan()


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ((), ValueError),
        ((0,), ValueError),
        ((2, 2), ValueError),
        (5, TypeError),
        ((2.0,), TypeError),
        ("20", TypeError),
    ],
)
def test_odd_sizes_are_refused(sizes, error):
    with pytest.raises(error, match="Expected `sizes`"):
        reidentification_rate(torch.ones(4), sizes)


def test_the_rate_has_the_gradient_of_its_differences():
    histogram = torch.tensor([9.0, 5.0, 3.0, 2.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    function = lambda h: torch.stack([reidentification_rate(h, (3, 6, 20))[f"rate_{n}"] for n in (3, 6, 20)])  # noqa: E731
    assert torch.autograd.gradcheck(function, histogram, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("length", [1, 3])
def test_the_rate_is_the_exact_linkability_of_the_peer(length):
    enrolled, tested, embeddings = demo_corpus(number=300)
    models = legal_eval.build_speaker_embeddings(enrolled, embeddings)
    probes, _ = legal_eval.build_test_embeddings(tested, embeddings, length, rng=np.random.default_rng(0))
    matrix = legal_eval.cosine_score_matrix(models, probes)
    names = {speaker: number for number, speaker in enumerate(models)}
    sizes = (1, 2, 20, 100, 299, 300)
    histogram = rank_histogram(
        torch.tensor(np.array(list(probes.values()))),
        torch.tensor([names[speaker] for speaker in probes]),
        torch.tensor(np.array(list(models.values()))),
        torch.arange(300),
    )
    ours = rates(reidentification_rate(histogram, sizes))
    for size in sizes:
        assert ours[size] == pytest.approx(legal_eval.linkability(matrix, size, estimator="exact")[0], abs=1e-9)
        drawn = legal_eval.linkability(matrix, size, n_runs=200)
        assert ours[size] == pytest.approx(np.mean(drawn), abs=4 * np.std(drawn) / math.sqrt(200) + 1e-9)


# --- One singled out


def isolated(seed, number=7, counts=(1, 3, 2, 2, 1, 3, 2), width=3):
    """References, conversations with the one that is tested, and the scores as the reference wants them."""
    draw = np.random.default_rng(seed)
    references = draw.normal(size=(number, width))
    voices = [0.7 * references[i] + draw.normal(size=(counts[i] + 1, width)) for i in range(number)]
    scores = [[references[i] @ voice.T for voice in voices] for i in range(number)]
    return references, voices, scores


def arguments(references, voices):
    speakers = torch.arange(len(voices)).repeat_interleave(torch.tensor([len(voice) for voice in voices]))
    is_tested = torch.cat([torch.arange(len(voice)) == 0 for voice in voices])
    return {
        "references": torch.tensor(references),
        "reference_speakers": torch.arange(len(references)),
        "conversations": torch.tensor(np.concatenate(voices)),
        "speakers": speakers,
        "is_tested": is_tested,
    }


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_singling_out_is_the_mean_over_all_sets_within_its_error(seed):
    references, voices, scores = isolated(seed)
    sizes = (2, 3, 5, 7)
    found = singling_out(**arguments(references, voices), sizes=sizes, scoring="dot", draws=1000)
    for size in sizes:
        expected = np.mean(
            [
                reference.singling_out(
                    np.array([row[0] for row in scores[own]]), [row[1:] for row in scores[own]], own, size
                )
                for own in range(len(scores))
            ]
        )
        error = found[f"singling_out_{size}_error"].item()
        assert error <= 2 * 0.5 / math.sqrt(7 * 1000)
        assert found[f"singling_out_{size}"].item() == pytest.approx(expected, abs=4 * error + 1e-12)
        assert (error == 0) == (size == len(scores))


def conversations_of_the_peer(scale=1, length=1):
    """Its demo's corpus, with as many calibration conversations as there are, and models of its own making."""
    enrolled, tested, embeddings = demo_corpus(number=40 * scale)
    models = legal_eval.build_speaker_embeddings(enrolled, embeddings)
    return models, legal_eval.build_conversations(tested, embeddings, length)


def as_arguments(models, made):
    voices = [np.stack([one.test, *one.calibration]) for one in made.values()]
    return arguments(np.stack(list(models.values())), voices)


@pytest.mark.parametrize("length", [1, 3])
def test_singling_out_is_that_of_the_peer(length):
    models, made = conversations_of_the_peer(length=length)
    scores = metrics.score_conversations(models, made)
    sizes = (2, 5, 10, 20, 40)
    ours = singling_out(**as_arguments(models, made), sizes=sizes, draws=500)
    for size in sizes:
        outcomes = np.array(list(metrics.singling_out(scores, size, n_runs=1 if size == 40 else 200).values()))
        value, error = ours[f"singling_out_{size}"].item(), ours[f"singling_out_{size}_error"].item()
        if size == 40:  # everybody: neither of us draws
            assert value == outcomes.mean()
        else:
            spread = math.hypot(error, outcomes.std(0, ddof=1).mean() / math.sqrt(outcomes.size))
            assert value == pytest.approx(outcomes.mean(), abs=4 * spread)


def test_its_error_is_the_spread_over_other_shuffles():
    models, made = conversations_of_the_peer()
    given = as_arguments(models, made)
    values, errors = [], []
    for seed in range(30):
        # Other values of the same geometry are other draws: turn everything by the same rotation.
        turn = torch.linalg.qr(torch.randn(32, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))[
            0
        ]
        turned = {name: value @ turn if value.is_floating_point() else value for name, value in given.items()}
        found = singling_out(**turned, sizes=(10,), draws=50)
        values.append(found["singling_out_10"])
        errors.append(found["singling_out_10_error"])
    spread = torch.stack(values).std()
    assert 0.6 < torch.stack(errors).mean() / spread < 1.7


@pytest.mark.parametrize(("calibration", "expected"), [(1, 0.265), (2, 0.302), (9, 0.349)])
def test_knowing_nothing_singles_out_as_chance_does(calibration, expected):
    # lambda exp(-lambda) with lambda ~ Gamma(M + 1/2) / M: e^-1 less what an imprecise threshold costs.
    m = calibration
    assert expected == pytest.approx((1 + 0.5 / m) * (m / (m + 1)) ** (m + 1.5), abs=5e-4)
    draw = torch.Generator().manual_seed(3)
    names, each = torch.arange(400), calibration + 1
    references, crowd = (torch.randn(rows, 64, generator=draw) for rows in (400, 400 * each))
    found = singling_out(references, names, crowd, names.repeat_interleave(each), sizes=(50,))
    assert found["singling_out_50"].item() == pytest.approx(expected, abs=0.015)


def test_knowing_all_singles_out_always_and_one_voice_for_all_never():
    names, voices = torch.arange(400), torch.randn(400, 64, generator=torch.Generator().manual_seed(0))
    for voice, expected in ((voices, 1.0), (torch.ones(400, 64), 0.0)):
        crowd = voice.repeat_interleave(3, 0)
        found = singling_out(voices, names, crowd, names.repeat_interleave(3), sizes=(50, 400))
        assert rates(found, "singling_out_") == {50: expected, 400: expected}


def test_every_conversation_takes_its_turn():
    references, voices, _ = isolated(4, counts=(1,) * 7)
    given = arguments(references, voices)
    del given["is_tested"]
    places = dealt_places(given["speakers"], row_keys(given["conversations"]))
    turns = [singling_out(**given, is_tested=places == turn, sizes=(7,))["singling_out_7"] for turn in (0, 1)]
    assert turns[0] != turns[1]
    assert singling_out(**given, sizes=(7,))["singling_out_7"] == sum(turns) / 2


def test_strangers_and_single_conversations_are_left_out():
    references, voices, _ = isolated(4)
    given = arguments(references, voices)
    more = {
        "references": torch.cat([given["references"], torch.randn(2, 3, dtype=torch.float64)]),
        "reference_speakers": torch.tensor([*range(7), 50, 60]),
        "conversations": torch.cat([given["conversations"], torch.randn(1, 3, dtype=torch.float64)]),
        "speakers": torch.cat([given["speakers"], torch.tensor([50])]),
        "is_tested": torch.cat([given["is_tested"], torch.tensor([True])]),
    }
    assert singling_out(**more, sizes=(3, 7), draws=50) == singling_out(**given, sizes=(3, 7), draws=50)


def test_singling_out_depends_neither_on_rows_nor_on_names(monkeypatch):
    models, made = conversations_of_the_peer()
    given = as_arguments(models, made)
    expected = singling_out(**given, sizes=(10, 40), draws=50)
    draw = torch.Generator().manual_seed(1)
    rows, columns = torch.randperm(40, generator=draw), torch.randperm(len(given["speakers"]), generator=draw)
    names = torch.randperm(40, generator=draw) * 5 - 70
    shuffled = {
        "references": given["references"][rows],
        "reference_speakers": names[given["reference_speakers"][rows]],
        "conversations": given["conversations"][columns],
        "speakers": names[given["speakers"][columns]],
        "is_tested": given["is_tested"][columns],
    }
    assert singling_out(**shuffled, sizes=(10, 40), draws=50) == expected
    monkeypatch.setattr("vpmetrics._trials.isolation.tile_rows", lambda *_: 3)
    assert singling_out(**given, sizes=(10, 40), draws=50) == expected


def test_sizes_beyond_the_people_there_are_give_nan_with_one_warning():
    references, voices, _ = isolated(0)
    with pytest.warns(UserWarning, match=UNDEFINED) as warned:
        found = singling_out(**arguments(references, voices), sizes=(7, 8, 100))
    assert len(warned) == 1
    assert found["singling_out_7"].isfinite()
    assert found["singling_out_8"].isnan()
    assert found["singling_out_100_error"].isnan()


@pytest.mark.parametrize("rows", [0, 1])
def test_nobody_is_singled_out_of_nothing(rows):
    names = torch.arange(rows)
    with pytest.warns(UserWarning, match=UNDEFINED):
        found = singling_out(torch.ones(rows, 4), names, torch.ones(rows, 4), names, sizes=(2,))
    assert found["singling_out_2"].isnan()


def test_nan_stays_nan_in_singling_out():
    references, voices, _ = isolated(0)
    references[2, 1] = np.nan
    with pytest.warns(UserWarning, match=UNDEFINED):
        assert singling_out(**arguments(references, voices), sizes=(7,))["singling_out_7"].isnan()


def test_conversations_without_one_that_is_tested_are_refused():
    references, voices, _ = isolated(0)
    given = arguments(references, voices)
    with pytest.raises(ValueError, match="mark one conversation of every speaker"):
        singling_out(**(given | {"is_tested": torch.zeros_like(given["is_tested"])}), sizes=(3,))
    with pytest.raises(TypeError, match="to be boolean"):
        singling_out(**(given | {"is_tested": given["speakers"]}), sizes=(3,))


# --- Conversations


def test_conversations_average_disjoint_utterances_of_one_speaker_and_session():
    original, protected, speakers = people(number=5, each=11)
    sessions = torch.arange(55) % 2
    made = conversations(original, protected, speakers, 3, sessions)
    sizes = torch.unique(torch.stack([speakers, sessions]), dim=1, return_counts=True)[1] // 3
    assert len(made.speakers) == sizes.sum()
    members = [
        [row for row in range(55) if speakers[row] == speaker and sessions[row] == session]
        for speaker, session in zip(made.speakers, made.sessions, strict=True)
    ]

    used = []
    for number, rows in enumerate(members):
        of = [
            trio
            for trio in combinations(rows, 3)
            if torch.allclose(original[list(trio)].mean(0), made.original[number])
        ]
        assert len(of) == 1
        assert_close(protected[list(of[0])].mean(0), made.protected[number])
        used += of[0]
    assert len(set(used)) == len(used)


def test_conversations_do_not_depend_on_the_order_or_the_names():
    original, protected, speakers = people(number=5, each=11)
    expected = conversations(original, protected, speakers, 3)
    rows = torch.randperm(55, generator=torch.Generator().manual_seed(0))
    found = conversations(original[rows], protected[rows], -speakers[rows], 3)
    order, others = (made.original[:, 0].argsort() for made in (expected, found))
    assert_close(found.original[others], expected.original[order], rtol=0, atol=0)
    assert_close(found.protected[others], expected.protected[order], rtol=0, atol=0)
    assert (found.speakers[others] == -expected.speakers[order]).all()


def test_utterances_go_together_by_chance_not_by_likeness():
    # Means of L utterances that have nothing to do with each other spread as 1 / L, along every direction.
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(4000, 2, generator=draw, dtype=torch.float64)
    made = conversations(noise, None, torch.arange(4000) // 40, 4).original
    assert_close(made.var(0), torch.full((2,), 0.25, dtype=torch.float64), rtol=0.12, atol=0)


def test_a_conversation_of_one_utterance_is_that_one_and_of_equal_ones_too():
    original, _, speakers = people(number=4, each=5)
    made = conversations(original, None, speakers, 1)
    assert set(map(tuple, made.original.tolist())) == set(map(tuple, original.tolist()))
    assert made.protected is None
    same = original[:1].expand(20, -1)
    assert (conversations(same, None, speakers, 3).original == same[0]).all()


@pytest.mark.parametrize(("utterances", "error"), [(0, ValueError), (1.5, TypeError), (True, TypeError)])
def test_an_odd_number_of_utterances_is_refused(utterances, error):
    original, protected, speakers = people()
    with pytest.raises(error, match="Expected `utterances`"):
        conversations(original, protected, speakers, utterances)


# --- The metrics


def fed(metric, protected, speakers, batches=1, **columns):
    for rows in torch.arange(len(speakers)).chunk(batches):
        metric.update(protected=protected[rows], speakers=speakers[rows], **{k: c[rows] for k, c in columns.items()})
    return metric.compute()


@pytest.mark.parametrize("accumulated", ["probes", "references", "both"])
def test_the_metric_averages_what_it_says(accumulated):
    _, protected, speakers = people(number=8, each=9, noise=1.5)
    is_reference = torch.arange(72) % 9 < 5
    sizes = (2, 5, 8)
    found = fed(
        ReidentificationRate(sizes, utterances=2, accumulated=accumulated),
        protected,
        speakers,
        is_reference=is_reference,
    )
    known, unknown = protected[is_reference], protected[~is_reference]
    names, others = speakers[is_reference], speakers[~is_reference]
    if accumulated != "probes":
        # The first two that the attacker has of everybody.
        first = dealt_places(names, row_keys(known)) < 2
        known, names = known[first], names[first]
    if accumulated != "references":
        unknown, _, others, _ = conversations(unknown, None, others, 2)
    assert len(others) == (32 if accumulated == "references" else 16)
    expected = reidentification_rate(rank_histogram(unknown, others, known, names), sizes)
    for name, value in expected.items():
        assert_close(found[name], value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
@pytest.mark.parametrize("metric", [ReidentificationRate, SinglingOut])
def test_what_the_attacker_has_is_in_no_probe_whatever_the_order_the_names_and_the_batches(metric, condition):
    original, protected, speakers = people(number=20, each=9)
    rows = torch.randperm(180, generator=torch.Generator().manual_seed(2))
    names = torch.randperm(200, generator=torch.Generator().manual_seed(3)) * 11 - 700
    one, other = (metric(sizes=(5, 20), utterances=2, condition=condition) for _ in range(2))
    one.update(original, protected, speakers)
    for part in rows.split(50):
        other.update(original[part], protected[part], names[speakers[part]])
    for name, value in one.compute().items():
        assert_close(other.compute()[name], value, rtol=0, atol=1e-12)
    # Utterances that say nothing but which they are: only one and the same would be found.
    alone = metric(sizes=(20,), condition=condition)
    noise = torch.randn(400, 64, generator=torch.Generator().manual_seed(4))
    alone.update(noise, noise, torch.arange(400) // 20)
    (value,) = rates(alone.compute(), "rate_" if metric is ReidentificationRate else "singling_out_").values()
    assert value < (0.12 if metric is ReidentificationRate else 0.45)


def test_originals_of_the_attacker_are_not_probed_protected():
    original, _, speakers = people(number=20, each=8)
    metric = ReidentificationRate(sizes=(20,), condition="OP", scoring="euclidean")
    # Every protected utterance is its original, and far from all others: only those would be found whose original the
    # attacker has, were they probes.
    own = original + 1000 * torch.randn(original.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    metric.update(own, own, speakers)
    assert metric.compute()["rate_20"] < 0.15


def test_sessions_are_averaged_by_themselves_and_told_apart():
    # Within a session everybody has a voice of their own, across sessions nobody has.
    draw = torch.Generator().manual_seed(0)
    keyed = torch.randn(20, 2, 1, 16, generator=draw) + 0.1 * torch.randn(20, 2, 6, 16, generator=draw)
    speakers = torch.arange(20).repeat_interleave(12)
    sessions = torch.arange(240) // 6 % 2
    found = {
        condition: fed(
            ReidentificationRate(sizes=(20,), utterances=3, condition=condition),
            keyed.flatten(0, 2),
            speakers,
            sessions=sessions,
        )["rate_20"]
        for condition in ("within", "across")
    }
    assert found["within"] == 1
    assert found["across"] < 0.25


def test_an_attack_changes_both_sides_before_they_are_averaged():
    original, _, speakers = people(number=12, each=6, noise=0.3)
    turn = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]

    class Turned:
        def attack(self, original, protected):
            return original, None if protected is None else (protected - 5) @ turn.T

    plain, attacked = (ReidentificationRate((12,), 2, condition="OP", attack=attack) for attack in (None, Turned()))
    for metric in (plain, attacked):
        metric.update(original, original @ turn + 5, speakers)
    clear = ReidentificationRate((12,), 2, condition="OP")
    clear.update(original, original, speakers)
    assert plain.compute()["rate_12"] < 0.4
    assert attacked.compute()["rate_12"] >= clear.compute()["rate_12"] - 0.05 > 0.9


@pytest.mark.parametrize(
    ("arguments", "error", "name"),
    [
        ({"sizes": (0,)}, ValueError, "sizes"),
        ({"utterances": 0}, ValueError, "utterances"),
        ({"condition": "XY"}, ValueError, "condition"),
        ({"scoring": "plda"}, ValueError, "scoring"),
        ({"attack": 3}, TypeError, "attack"),
    ],
)
@pytest.mark.parametrize("metric", [ReidentificationRate, SinglingOut])
def test_odd_arguments_are_refused(metric, arguments, error, name):
    with pytest.raises(error, match=f"Expected `{name}`"):
        metric(**arguments)


def test_further_odd_arguments_are_refused():
    with pytest.raises(ValueError, match="Expected `accumulated`"):
        ReidentificationRate(accumulated="probe")
    with pytest.raises(ValueError, match="Expected `condition`"):
        SinglingOut(condition="within")
    with pytest.raises(ValueError, match="Expected `draws` to be at least 2"):
        SinglingOut(draws=1)


def test_the_metric_has_a_gradient_where_ranks_are_soft():
    _, protected, speakers = people(number=6, each=6)
    protected.requires_grad_()
    metric = ReidentificationRate(sizes=(3, 20), bandwidth=0.3)
    value = metric(protected=protected, speakers=speakers)
    (value["rate_3"] + value["rate_20"]).backward()
    assert protected.grad.isfinite().all()
    assert protected.grad.abs().sum() > 0


# --- Curves and figures


@pytest.mark.parametrize("metric", [ReidentificationRate, SinglingOut])
def test_a_curve_over_utterances_is_that_of_metrics_made_for_each(metric):
    _, protected, speakers = people(number=12, each=12, noise=2.0)
    one = metric(sizes=(12,))
    one.update(protected=protected, speakers=speakers)
    curve = one.over_utterances((1, 2, 3))
    for length, values in curve.items():
        other = metric(sizes=(12,), utterances=length)
        other.update(protected=protected, speakers=speakers)
        assert other.compute() == values
    with pytest.raises(ValueError, match="Expected `lengths`"):
        one.over_utterances((0,))


def drawn(ax, gid):
    return [line for line in ax.lines if line.get_gid() == gid]


def test_the_rate_is_drawn_as_counted_and_as_extrapolated_from_there():
    metric = ReidentificationRate(sizes=(10, 500))
    _, protected, speakers = people(number=30, each=4)
    metric.update(protected=protected, speakers=speakers)
    figure, ax = metric.plot(label="one")
    metric.plot(ax=ax, label="another")
    counted, extrapolated, chance = (drawn(ax, gid) for gid in ("system", "extrapolated", "chance"))
    assert (len(counted), len(extrapolated), len(chance)) == (2, 2, 1)
    assert counted[0].get_xdata()[-1] == extrapolated[0].get_xdata()[0] == 30
    assert extrapolated[0].get_xdata()[-1] == 500
    assert extrapolated[0].get_ydata()[-1] == pytest.approx(metric.compute()["rate_500"].item())
    x, y = (np.asarray(part) for part in chance[0].get_data())
    assert np.allclose(x * y, 1)
    assert [text.get_text() for text in ax.get_legend().get_texts()].count("extrapolated") == 1
    assert ax.get_figure() is figure


def test_singling_out_is_drawn_with_its_error_beside_chance():
    metric = SinglingOut(sizes=(5, 10, 300))
    _, protected, speakers = people(number=10, each=6)
    metric.update(protected=protected, speakers=speakers)
    with pytest.warns(UserWarning, match=UNDEFINED):
        _, ax = metric.plot()
    value = metric.compute()
    assert drawn(ax, "system")[0].get_ydata() == pytest.approx([value[f"singling_out_{n}"].item() for n in (5, 10)])
    assert drawn(ax, "chance")[0].get_ydata() == pytest.approx([math.exp(-1)] * 2)
    low, high = ax.collections[0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(4 * value["singling_out_5_error"].item())


def test_a_rate_over_utterances_is_drawn_beside_chance():
    _, ax = draw_over_utterances({1: 0.2, 4: 0.5, 2: 0.3}, 0.01, None, "system")
    assert list(drawn(ax, "system")[0].get_xdata()) == [1, 2, 4]
    assert drawn(ax, "chance")[0].get_ydata() == pytest.approx([0.01] * 3)


def made_systems(number=200, each=16, width=64):
    """Three anonymisers that confuse single utterances equally often: references, probes, and whose each is.

    A pseudo-voice that half of all people share; a key per session, that of the probes being another one; and noise
    that every utterance has anew, which an attacker who hears more averages away.
    """
    draw = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, width, generator=draw)

    shared = randn(2)[torch.arange(number) % 2].view(1, number, 1, width)
    voices = randn(1, number, 1)
    return {
        "shared pseudo-voice": shared + 0.3 * randn(2, number, each),
        "key per session": voices + 2.7 * randn(2, number, 1) + 0.3 * randn(2, number, each),
        "noise per utterance": voices + 2.85 * randn(2, number, each),
    }


def test_three_systems_that_the_equal_error_rate_does_not_tell_apart():
    found = {}
    for name, spoken in made_systems().items():
        _, number, each, _ = spoken.shape
        first, second = torch.nn.functional.normalize(spoken[:, :, :2].flatten(1, 2), dim=-1)
        of_pair = torch.arange(number).repeat_interleave(2)
        values = [equal_error_rate(first @ second.T, of_pair[:, None] == of_pair).item()]
        rows = {
            "protected": spoken.flatten(0, 2),
            "speakers": torch.arange(number).repeat_interleave(each).repeat(2),
            "is_reference": torch.arange(2 * number * each) < number * each,
        }
        for length in (1, 8):
            rate, singled = ReidentificationRate((100,), length), SinglingOut((100,), length)
            values += [rate(**rows)["rate_100"].item(), singled(**rows)["singling_out_100"].item()]
        found[name] = values
    shared, keyed, noisy = found.values()
    for eer, *_ in found.values():
        assert eer == pytest.approx(0.325, abs=0.012)
    # One sentence: half of all people are out; whoever shares a voice or has another key is harder to find, yet a key
    # leaves everybody somebody to stand out as. Eight of them: noise is gone, a key is as good as before.
    assert shared[1] < 0.03 < 0.05 < keyed[1] < 0.15 < 0.35 < noisy[1]
    assert shared[3] < 0.03 < 0.05 < keyed[3] < 0.15 < 0.95 < noisy[3]
    assert shared[4] < 0.4 < 0.7 < keyed[4] < noisy[4]
