"""The classes of rank and local disclosure: conditions, protocols, sides, no references."""

import numpy as np
import pytest
import torch
from reference import rank as reference
from reports import compute
from samples import utterances
from torch.testing import assert_close

from vpmetrics import LocalInformationDisclosure, SimilarityRankDisclosure
from vpmetrics.data import demo_voices
from vpmetrics.functional import rank_disclosure, rank_histogram
from vpmetrics.scoring import PLDA


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
@pytest.mark.parametrize("chosen", [False, True])
def test_class_returns_what_the_functions_return(condition, chosen):
    original, protected, speakers = utterances()
    known = torch.rand(90, generator=torch.Generator().manual_seed(1)) < 0.4
    metric = SimilarityRankDisclosure(model="beta_binomial", condition=condition)
    # What a condition does not compare is not needed.
    given = {"protected": protected, "speakers": speakers}
    if "O" in condition:
        given["original"] = original
    if chosen:
        given["is_reference"] = known
    metric.update(**given)
    rows_of_side = {"O": original, "P": protected}
    references = rows_of_side[condition[0]]
    probes = rows_of_side[condition[1]]
    if chosen:
        histogram = rank_histogram(
            probes[~known], speakers[~known], references[known], speakers[known]
        )
    else:
        histogram = rank_histogram(probes, speakers, references)
    assert_close(metric.compute(), rank_disclosure(histogram, "beta_binomial"))


def test_op_excludes_only_the_same_recording():
    original, protected, speakers = utterances()
    metric = SimilarityRankDisclosure(condition="OP")
    recordings = torch.arange(90)
    # Originals of the first sixty, protected versions of the last sixty: thirty recordings are on
    # both sides.
    metric.update(original=original[:60], speakers=speakers[:60], utterances=recordings[:60])
    metric.update(protected=protected[30:], speakers=speakers[30:], utterances=recordings[30:])
    arrays = [column.numpy() for column in (original, protected, speakers)]
    both = reference.reference_scores(*(column[:60] for column in arrays))
    is_trial = (speakers[:60, None] == speakers[:60]).sum(1) > 1
    is_on_both_sides = (recordings[:60] >= 30)[is_trial]
    both = [column[is_on_both_sides] for column in both]
    apart = reference.reference_scores(*arrays, (recordings < 60).numpy())
    histogram = reference.rank_histogram(*map(np.concatenate, zip(both, apart, strict=True)))
    assert_close(metric.compute(), rank_disclosure(torch.from_numpy(histogram)))


def test_ranks_follow_any_scoring():
    original, _, speakers = utterances(dtype=torch.float32)
    cubed = lambda a, b: torch.cosine_similarity(a[:, None], b[None], dim=2) ** 3  # noqa: E731
    plain = rank_histogram(original, speakers)
    assert torch.equal(rank_histogram(original, speakers, scoring=cubed), plain)
    assert (
        rank_histogram(original, speakers, scoring=PLDA().fit(original, speakers))[0] > plain[0] / 2
    )
    metric = SimilarityRankDisclosure(condition="OO", scoring=cubed)
    assert compute(metric, original=original, speakers=speakers) == rank_disclosure(plain)


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
@pytest.mark.parametrize("metric", [SimilarityRankDisclosure, LocalInformationDisclosure])
@pytest.mark.parametrize("intervals", [None, 0.95])
@pytest.mark.parametrize(
    ("condition", "is_reference"), [("OP", None), ("PP", torch.zeros(12).bool())]
)
def test_missing_references_give_nan(metric, intervals, condition, is_reference):
    rows = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    given = {"protected": rows, "speakers": torch.arange(12) % 4, "is_reference": is_reference}
    assert all(
        value.isnan()
        for value in compute(metric(condition=condition, intervals=intervals), **given).values()
    )


def test_mirrored_embeddings_disclose_with_a_negative_slope():
    voices = demo_voices()
    mirrored = 2 * voices.original.mean(0) - voices.original
    value = compute(LocalInformationDisclosure("OP"), voices.original, mirrored, voices.speakers)
    # The slope learns the sign, and every trial names its speaker.
    assert value["alid"] > 5
    assert value["pdr"] == 1
