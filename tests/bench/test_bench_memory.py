"""Peak memory above the embeddings: of many speakers, and of many utterances of few speakers."""

import pytest

from bench.timing import peak_megabytes

pytestmark = pytest.mark.bench

SETUP = """
import torch
import warnings
from samples import people
import vpmetrics
warnings.simplefilter("ignore")
metric = vpmetrics.{}(validate_args=False, **{!r})
metric.update(*people(number={}, each={}, width=192, noise=1.5, dtype=torch.float32))
"""


def peak(metric, settings, speakers, each):
    """Megabytes that ``compute`` needs."""
    grown = peak_megabytes(SETUP.format(metric, settings, speakers, each), "metric.compute()")
    print(f"\n{metric}, {settings}: {speakers} speakers, {each} utterances each: {grown:.0f} MB")
    return grown


@pytest.mark.parametrize("metric", ["DeIdentification", "VoiceDistinctiveness"])
@pytest.mark.parametrize("intervals", [None, 0.95])
def test_memory_of_many_speakers_is_linear(metric, intervals):
    few, many = (peak(metric, {"intervals": intervals}, speakers, 3) for speakers in (2100, 4200))
    assert many <= 2 * few + 50  # four times the pairs of speakers
    assert many <= 300
