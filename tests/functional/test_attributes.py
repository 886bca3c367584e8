"""Attribute disclosure: extremes by hand, chance, what is erased, intervals that refit."""

import pytest
import torch
from samples import UNDEFINED
from torch.nn.functional import one_hot

from vpmetrics import VoicePrivacy
from vpmetrics.functional import attribute_disclosure


def speakers_of_two_classes(seed=0, number=40, utterances=6, width=12):
    """Voices without and with the direction that tells the class, labels and speakers."""
    draw = torch.Generator().manual_seed(seed)
    speakers = torch.arange(number).repeat_interleave(utterances)
    voices = 2 * torch.randn(number, width, generator=draw, dtype=torch.float64)
    voices[:, 0] = 0
    labels = torch.arange(number) % 2
    noise = 0.5 * torch.randn(len(speakers), width, generator=draw, dtype=torch.float64)
    return (
        voices[speakers],
        4 * (2 * labels[speakers, None] - 1) * one_hot(torch.tensor(0), width),
        noise,
        speakers,
    )


def test_separable_classes_disclose_the_entropy_and_noise_chance_level():
    voices, sex, noise, speakers = speakers_of_two_classes()
    known = attribute_disclosure(voices + sex + noise, speakers % 2, speakers)
    hidden = attribute_disclosure(voices + noise, speakers % 2, speakers)
    assert known.disclosure > 0.95
    assert known.accuracy == known.entropy == 1
    assert known.majority == 0.5
    # Chance is not the disclosure of the labels that are there.
    assert max(known.chance, hidden.chance, hidden.disclosure) < 0.1
    assert hidden.low == 0


def test_erasing_sex_differs_from_erasing_identity():
    voices, sex, noise, speakers = speakers_of_two_classes()
    found = []
    for protected in (voices + noise, sex + noise):
        disclosure = attribute_disclosure(
            protected, speakers % 2, speakers, permutations=0
        ).disclosure
        suite = VoicePrivacy(metrics=["op_d_ece"], attacks=None)
        found.append((disclosure, suite(voices + sex + noise, protected, speakers)["op_d_ece"]))
    without_sex, without_identity = found
    assert without_sex[0] < 0.1 < 0.9 < without_identity[0]
    # Speakers of one sex still sound alike.
    assert without_identity[1] < 0.3 < 0.4 < without_sex[1]


def test_interval_includes_the_training_variance():
    # Few speakers make a poor classifier, and the losses of one classifier do not show how poor
    # another one were.
    voices, sex, noise, speakers = speakers_of_two_classes(number=24)
    rows, labels = 0.5 * voices + 0.5 * sex + noise, speakers % 2
    known, values = attribute_disclosure(rows, labels, speakers, permutations=0), []
    assert known.chance.isnan()
    for speaker in range(24):
        kept = speakers != speaker
        alone = attribute_disclosure(
            rows[kept], labels[kept], speakers[kept], confidence=None, permutations=0
        )
        assert alone.low.isnan()
        values.append(alone.disclosure)
    reach = 2.069 * 23 / 24**0.5 * torch.stack(values).std()
    # Folds, landmarks and scales differ in a set with a speaker less, so both agree roughly.
    assert 0.5 * reach < (known.high - known.low) / 2 < 2 * reach


@pytest.mark.parametrize(
    ("labels", "reason"),
    [([0] * 8, "two classes"), ([0] * 6 + [1, 1], "two speakers of every class")],
)
def test_too_few_classes_or_speakers_are_nan_with_one_warning(labels, reason):
    with pytest.warns(UserWarning, match=f"{reason}.*{UNDEFINED}") as caught:
        found = attribute_disclosure(torch.randn(8, 3), torch.tensor(labels), torch.arange(8) // 2)
    assert len(caught) == 1
    assert all(value.isnan() for value in found)


def test_two_speakers_have_no_interval():
    rows, place = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)), torch.arange(20)
    with pytest.warns(UserWarning, match="Intervals need"):
        result = attribute_disclosure(rows, place // 5 % 2, place % 2, confidence=0.9)
    assert result.disclosure.isfinite()
    assert result.low.isnan()


def test_folds_and_draws_stay_while_the_rows_that_give_the_order_do():
    draw = torch.Generator().manual_seed(3)
    speakers = torch.arange(24).repeat_interleave(4)
    labels = speakers % 2
    original = torch.randn(96, 6, generator=draw, dtype=torch.float64)
    protected = original + 0.5 * labels[:, None]
    retrained = protected + 1e-9 * torch.randn(96, 6, generator=draw, dtype=torch.float64)
    rows = torch.randperm(96, generator=draw)
    for order_by, is_same in ((original, True), (torch.ones_like(original), False), (None, False)):
        results = [
            attribute_disclosure(side, labels, speakers, permutations=2, order_by=order_by)
            for side in (protected, retrained)
        ]
        change = (results[0].disclosure - results[1].disclosure).abs()
        assert (change < 1e-6) == is_same
        shuffled = None if order_by is None else order_by[rows]
        again = attribute_disclosure(
            protected[rows], labels[rows], speakers[rows], permutations=2, order_by=shuffled
        )
        torch.testing.assert_close(again, results[0], atol=1e-9, rtol=0)
