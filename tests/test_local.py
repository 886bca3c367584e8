"""The class of local information disclosure: figures, the wrong sign, no references."""

import pytest
import torch
from reports import compute
from samples import utterances
from torch.testing import assert_close

from vpmetrics import LocalInformationDisclosure, SimilarityRankDisclosure
from vpmetrics.data import demo_voices
from vpmetrics.functional import identify


def test_plot():
    original, protected, speakers = utterances()
    metric, other = LocalInformationDisclosure(), LocalInformationDisclosure(condition="OO")
    for each in (metric, other):
        each.update(original, protected, speakers)
    figure, axes = metric.plot(label="B5")
    (line,) = [line for line in axes.lines if line.get_gid() == "system"]
    assert_close(torch.tensor(line.get_xdata()[1:-1]), identify(protected, speakers).bits.sort().values)
    assert other.plot(ax=axes, label="original")[1] is axes
    metric.plot([metric.compute(), other.compute()])
    figure.canvas.draw()
    with pytest.warns(UserWarning, match="The result is NaN"):
        LocalInformationDisclosure().plot()[0].canvas.draw()


def test_mirrored_embeddings_disclose_with_a_negative_slope():
    voices = demo_voices()
    mirrored = 2 * voices.original.mean(0) - voices.original
    value = compute(LocalInformationDisclosure("OP"), voices.original, mirrored, voices.speakers)
    # The slope learns the sign, and every trial names its speaker.
    assert value["alid"] > 5
    assert value["pdr"] == 1


@pytest.mark.filterwarnings("ignore:.*The result is NaN")
@pytest.mark.parametrize("metric", [SimilarityRankDisclosure, LocalInformationDisclosure])
@pytest.mark.parametrize("intervals", [None, 0.95])
@pytest.mark.parametrize("given", [{"condition": "OP"}, {"condition": "PP", "is_reference": torch.zeros(12).bool()}])
def test_missing_references_give_nan(metric, intervals, given):
    found = metric(condition=given["condition"], intervals=intervals)
    rows = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    found.update(protected=rows, speakers=torch.arange(12) % 4, is_reference=given.get("is_reference"))
    assert all(value.isnan() for value in found.compute().values())
