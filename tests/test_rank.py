"""The class of rank disclosure: conditions, protocols, sides, figures."""

import pytest
import torch
from reports import compute
from samples import UNDEFINED, utterances
from torch.testing import assert_close

from vpmetrics import SimilarityRankDisclosure
from vpmetrics.functional import fit_beta_binomial, rank_disclosure, rank_histogram
from vpmetrics.scoring import PLDA


@pytest.mark.parametrize("condition", ["OO", "OP", "PP"])
@pytest.mark.parametrize("chosen", [False, True])
def test_class_returns_what_the_functions_return(condition, chosen):
    original, protected, speakers = utterances()
    known = torch.rand(90, generator=torch.Generator().manual_seed(1)) < 0.4
    metric = SimilarityRankDisclosure(model="beta_binomial", condition=condition)
    # What a condition does not compare is not needed.
    metric.update(original if "O" in condition else None, protected, speakers, known if chosen else None)
    references, inputs = ({"O": original, "P": protected}[letter] for letter in condition)
    given = inputs, speakers, references
    if chosen:
        given = inputs[~known], speakers[~known], references[known], speakers[known]
    assert_close(metric.compute(), rank_disclosure(rank_histogram(*given), "beta_binomial"))


def test_op_excludes_only_the_same_recording():
    original, protected, speakers = utterances()
    metric = SimilarityRankDisclosure(condition="OP")
    # Originals of the first sixty, protected versions of the last sixty: thirty recordings are on both sides.
    metric.update(original=original[:60], speakers=speakers[:60], utterances=torch.arange(60))
    metric.update(protected=protected[30:], speakers=speakers[30:], utterances=torch.arange(30, 90))
    # The same, with references that are built by hand for every input.
    names, ranks = speakers[:60].unique(), []
    place = torch.cos(torch.arange(original.shape[1], dtype=original.dtype))
    order = (original[:60] @ place).argsort()
    rows = {int(name): [int(k) for k in order if speakers[k] == name] for name in names}
    for k in range(30, 90):
        own = rows.get(int(speakers[k]), [])
        if len(own) < 1 + (k in own):
            continue
        left = {n: [r for j, r in enumerate(of) if k not in own or len(of) == 1 or j != own.index(k) % len(of)]
                for n, of in rows.items()}  # fmt: skip
        means = torch.stack([original[of].mean(0) for of in left.values()])
        scores = torch.cosine_similarity(protected[k][None], means, dim=1)
        ranks.append(int((scores > scores[names == speakers[k]]).sum()))
    histogram = torch.bincount(torch.tensor(ranks), minlength=len(names)).double()
    expected = rank_disclosure(histogram)
    for name, value in metric.compute().items():
        assert_close(value, expected[name])


def test_ranks_follow_any_scoring():
    original, _, speakers = utterances(dtype=torch.float32)

    def cosine_cubed(a, b):
        return torch.cosine_similarity(a[:, None], b[None], dim=2) ** 3

    plain = rank_histogram(original, speakers)
    assert torch.equal(rank_histogram(original, speakers, scoring=cosine_cubed), plain)
    assert rank_histogram(original, speakers, scoring=PLDA().fit(original, speakers))[0] > plain[0] / 2
    metric = SimilarityRankDisclosure(condition="OO", scoring=cosine_cubed)
    assert compute(metric, original=original, speakers=speakers) == rank_disclosure(plain)


def test_plot():
    original, protected, speakers = utterances()
    metric = SimilarityRankDisclosure()
    with pytest.warns(UserWarning, match=UNDEFINED):
        metric.plot()[0].canvas.draw()
    metric.update(original, protected, speakers)
    histogram = rank_histogram(protected, speakers)
    figure, axes = metric.plot(label="B5")
    observed, fit, chance = axes.lines
    assert_close(torch.tensor(observed.get_ydata()), (histogram / histogram.sum())[histogram > 0])
    assert_close(torch.tensor(fit.get_ydata()), fit_beta_binomial(histogram).probabilities)
    assert list(chance.get_ydata()) == [1 / len(histogram)] * 2
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert "B5" in axes.get_title()
    assert metric.plot(ax=axes)[1] is axes
    metric.plot([metric.compute(), metric.compute()])
    figure.canvas.draw()
