"""Identification trials: galleries that lack one utterance are formed and compared many at once."""

import pytest
import torch
from operations import count_operations
from torch.testing import assert_close

from vpmetrics import functional as F
from vpmetrics._identification import references


def voices(counts, width=16):
    """Protected and original utterances of speakers, and their speakers.

    Each speaker has so many utterances.
    """
    generator = torch.Generator().manual_seed(0)
    speakers = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = torch.randn(len(counts), width, generator=generator)[speakers]
    original, noise = centres + torch.randn(2, len(speakers), width, generator=generator)
    return original + noise, speakers, original


@pytest.mark.parametrize("scoring", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("limit", ["_gallery_entries_at_once", "num_rows_at_once"])
def test_galleries_at_once_equal_one_after_the_other(scoring, limit, monkeypatch):
    rows = voices([1, 2, 3, 30, 5, 5, 9])
    together = F.identify(*rows, scoring=scoring)
    monkeypatch.setattr(references, limit, lambda *_: 1)
    single = F.identify(*rows, scoring=scoring)
    assert_close(together.histogram, single.histogram, rtol=0, atol=0)
    assert_close(together.bits, single.bits, rtol=1e-5, atol=1e-6)


def test_function_of_the_caller_gets_one_gallery_at_a_time():
    rows = voices([2, 3, 30])
    shapes = []

    def cosine(a, b):
        shapes.append((a.dim(), len(b)))
        return torch.nn.functional.normalize(a) @ torch.nn.functional.normalize(b).T

    found = F.identify(*rows, scoring=cosine)
    assert_close(found.histogram, F.identify(*rows).histogram, rtol=0, atol=0)
    assert set(shapes) == {(2, 3)}


def test_operations_do_not_grow_with_utterances_per_speaker():
    few, many = (
        count_operations(lambda n=n: F.rank_histogram(*voices([n] * 40))).total for n in (10, 50)
    )
    assert many <= few + 5
