"""One singled out of N people: every set gone through, the peer's Monte Carlo, chance."""

from __future__ import annotations

import math

import legal_eval
import numpy as np
import pytest
import torch
from crowds import UNDEFINED, demo_corpus, rates
from legal_eval import metrics
from reference import crowd as reference

from vpmetrics._trials.conversations import dealt_places
from vpmetrics._trials.utterances import row_keys
from vpmetrics.functional import singling_out


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
