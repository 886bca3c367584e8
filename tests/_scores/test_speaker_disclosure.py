"""Who is protected worst.

Disclosure of every speaker, by hand, by a loop, and adding up to that of all.
"""

import math

import numpy as np
import pytest
import torch
from reference import similarity
from reference import speakers as reference
from reports import Everything, compute, make_report
from samples import people
from torch.testing import assert_close

from vpmetrics._identification.identification import bits_of_ranks
from vpmetrics._scores import pair_blocks
from vpmetrics._scores.speaker_disclosure import average_bits_by_speaker
from vpmetrics.functional import speaker_disclosure
from vpmetrics.report.trial_report import ScoredTrials, report_trials

SIDES = ("enrolled", "probed", "both")
FULL = 1 / (2 * math.log(2))


def uneven(seed=0, dtype=torch.float64):
    """Some people who have between one and nine utterances, in no order."""
    original, protected, speakers = people(seed, number=9, each=9, noise=1.5, dtype=dtype)
    kept = torch.arange(81) % 9 <= torch.arange(9).repeat_interleave(9)
    rows = kept.nonzero().flatten()
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    return original[rows], protected[rows], speakers[rows]


def trials(seed=0, count=300):
    draw = torch.Generator().manual_seed(seed)
    both = torch.randint(5, (2, count), generator=draw) * 3 - 4
    target = (both[0] == both[1]).long()
    return torch.randint(20, (count,), generator=draw).double() + 5 * target, target, both


def assert_as_in_the_reference(side, names, expected):
    for column, name in enumerate(names.tolist()):
        found = [field[column].item() for field in side]
        assert found == pytest.approx(expected[name], abs=1e-9, nan_ok=True)


def test_speaker_disclosure_matches_a_loop_over_trials():
    preds, target, both = trials()
    found = speaker_disclosure(preds, target, both)
    assert found.speakers.tolist() == sorted(both.unique().tolist())
    for side in SIDES:
        expected = reference.speaker_disclosure(preds.numpy(), target.numpy(), both.numpy(), side)
        assert_as_in_the_reference(getattr(found, side), found.speakers, expected)


@pytest.mark.parametrize("few_pairs", [pair_blocks.FEW_PAIRS, 0], ids=["exact", "binned"])
def test_embeddings_match_a_loop_over_pairs(few_pairs, monkeypatch):
    monkeypatch.setattr(pair_blocks, "FEW_PAIRS", few_pairs)
    monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", 7)
    arrays = [column.numpy() for column in uneven()]
    for condition, known in make_report(uneven()).conditions.items():
        scores, target, pairs = similarity.trials(*arrays, condition)
        for side in SIDES:
            # A pair within one side has no first and no second utterance.
            of_pairs = arrays[2][np.array(pairs).T]
            expected = reference.speaker_disclosure(
                scores, target, of_pairs, side if condition == "OP" else "both"
            )
            found = getattr(known.speakers, side)
            if few_pairs:
                assert_as_in_the_reference(found, known.speakers.speakers, expected)
            assert found.targets.tolist() == [values[2] for values in expected.values()]
            assert found.nontargets.tolist() == [values[3] for values in expected.values()]
            # What some have no trials of weighs nothing, and the rest is the whole.
            assert_close(found.contributions.sum(), known.scalars["d_ece"], rtol=0, atol=1e-12)
            assert_close(
                found.l_w[~found.l_w.isnan()].max(), known.scalars["l_w"], rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("absent", [[2], [2, 3], [0, 5], [4]])
def test_one_sided_speakers_do_not_change_other_speakers(absent, monkeypatch):
    original, protected, speakers = people(0, number=6, each=8, noise=1.5)
    # none of theirs is given
    protected[torch.isin(speakers, speakers.unique()[absent])] = torch.nan
    monkeypatch.setattr(pair_blocks, "FEW_PAIRS", 0)
    found = []
    for size in (48, 8):  # with smaller blocks, speakers begin where a block ends
        monkeypatch.setattr(pair_blocks, "BLOCK_SIZE", size)
        metric = Everything()
        given = protected.isfinite().all(1)
        metric.update(original[given], protected[given], speakers[given])
        metric.update(original=original[~given], speakers=speakers[~given])
        known = metric.report().conditions["OP"]
        found.append(
            (known.matrix, *known.similarity, *known.speakers.probed, *known.speakers.enrolled)
        )
    assert_close(found[1], found[0], atol=1e-12, rtol=0, equal_nan=True)
    assert torch.equal(found[0][0].isnan().all(0).nonzero().flatten(), torch.tensor(absent))


def test_target_and_nontarget_terms_match_hand_values():
    # The voice of 7 is found at once, that of 4 is not; PAV pools the two scores in between.
    preds, target = torch.tensor([0.0, 1.0, 2.0, 3.0]).double(), torch.tensor([0, 1, 0, 1])
    found = speaker_disclosure(
        preds, target, (torch.tensor([4, 4, 7, 7]), torch.tensor([7, 4, 4, 7]))
    )
    assert_close(found.probed.of_targets, torch.tensor([0.0, FULL / 2]).double())
    assert_close(found.probed.of_nontargets, torch.tensor([0.0, FULL / 2]).double())
    assert_close(found.enrolled.of_nontargets, torch.tensor([FULL / 2, 0.0]).double())
    assert found.both.nontargets.tolist() == [2, 2]
    assert_close(found.both.d_ece, torch.tensor([FULL / 4, 3 * FULL / 4]).double())


def test_result_is_independent_of_order_labels_and_increasing_maps():
    preds, target, both = trials(1)
    order = torch.randperm(len(preds), generator=torch.Generator().manual_seed(0))
    one = speaker_disclosure(preds, target, both)
    other = speaker_disclosure(preds[order].exp(), target[order], -both[:, order])
    for side in SIDES:
        for column, turned in zip(getattr(one, side), getattr(other, side), strict=True):
            assert_close(column, turned.flip(0), rtol=0, atol=1e-12)


def test_trial_report_matches_speaker_disclosure():
    preds, target, both = trials(2)
    places = both.unique(return_inverse=True)[1]
    scalars = report_trials(
        {"OP": ScoredTrials(preds, target.bool(), places)}, num_speakers=5
    ).scalars
    expected = speaker_disclosure(preds, target, both).probed.d_ece
    assert_close(scalars["op_worst_speaker_d_ece"], expected.max())
    assert scalars["op_worst_speaker"] == expected.argmax()
    assert_close(scalars["op_speaker_d_ece_spread"], expected.std())


@pytest.mark.parametrize("columns", [(), ("sessions", "groups")])
def test_speaker_averages_recombine_to_those_of_all(columns):
    original, protected, speakers = uneven() if not columns else people(number=9, each=8, noise=1.5)
    labels = {"sessions": torch.arange(len(speakers)) % 2, "groups": (speakers > 0).long()}
    rows = {"original": original, "protected": protected, "speakers": speakers} | {
        key: labels[key] for key in columns
    }
    names, counts = speakers.unique(return_counts=True)
    several = counts > 1  # of a single utterance no reference is left
    for name, known in make_report(rows).conditions.items():
        for side in known.speakers[1:]:
            assert_close(side.contributions.sum(), known.scalars["d_ece"], rtol=0, atol=1e-12)
        each = average_bits_by_speaker(known.identification)
        for key in ("mean_d", "alid"):
            whole = (each.inputs * getattr(each, key)).sum() / each.inputs.sum()
            assert_close(whole, known.scalars[key], rtol=0, atol=1e-12)
            assert known.scalars[f"worst_speaker_{key}"] == getattr(each, key).max()
        if name == "PP":
            assert each.speakers.tolist() == names[several].tolist()
            assert each.inputs.tolist() == counts[several].tolist()


def test_rank_bits_by_hand():
    # Four references; two inputs of one speaker come first, one of the other is tied for the first
    # two places.
    histogram = torch.tensor([2.5, 0.5, 0.0, 1.0], dtype=torch.float64)
    found = bits_of_ranks(histogram, torch.tensor([0, 0, 0, 3]), torch.tensor([1, 1, 2, 1]))
    first, second, last = math.log2(2.5), math.log2(0.5), math.log2(1.0)
    assert found.tolist() == pytest.approx([first, first, (first + second) / 2, last])


# All rows of NaN are equal.
@pytest.mark.filterwarnings("ignore:.*embeddings equal another one")
@pytest.mark.parametrize("rows", [slice(None), slice(1)], ids=["all rows", "one row"])
def test_nan_scores_give_no_worst_speaker(rows):
    sides = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    sides[:, rows] = torch.nan
    with pytest.warns(UserWarning, match="Some scores are NaN"):
        values = compute(Everything(validate_args=False), *sides, torch.arange(8) // 2)
    for key in (
        "op_worst_speaker",
        "op_worst_speaker_d_ece",
        "worst_speaker_disclosure",
        "worst_speaker_chance",
    ):
        assert values[key].isnan(), key


def test_disclosure_without_target_trials_is_nan():
    with pytest.warns(UserWarning, match="There are no target trials"):
        found = speaker_disclosure(
            torch.arange(3.0), torch.zeros(3).long(), torch.tensor([[0, 0, 0], [1, 2, 3]])
        )
    assert found.both.d_ece.isnan().all()


@pytest.mark.parametrize(
    ("speakers", "error", "says"),
    [
        (torch.zeros(3), TypeError, "two tensors"),
        ((torch.zeros(3).long(),), TypeError, "two tensors"),
        ((torch.zeros(3), torch.zeros(3)), TypeError, "Expected `speakers of the enrolment side`"),
        ((torch.zeros(2).long(), torch.zeros(3).long()), ValueError, "the shape of `target`"),
        (
            (torch.zeros(3).long(), torch.zeros(3).long()),
            ValueError,
            "1 where both `speakers` are the same",
        ),
    ],
)
def test_invalid_speakers_raise(speakers, error, says):
    with pytest.raises(error, match=says):
        speaker_disclosure(torch.arange(3.0), torch.tensor([0, 1, 1]), speakers)
