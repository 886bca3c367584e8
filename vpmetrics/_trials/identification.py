"""Ranks and local information of every input, from one walk through its scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._precision import at_least_float32, result_dtype, widen
from vpmetrics._trials import shares
from vpmetrics._trials import slopes as regression
from vpmetrics._trials.ranks import bits_of_ranks, histogram_of_ranks, no_ranks, rank_inputs
from vpmetrics._trials.references import Tile, Trials, walk_shared
from vpmetrics._trials.scorers import Scoring
from vpmetrics._trials.utterances import occurrences, row_keys

_AT_HAND = 2**19  # scores that slopes are fitted on, and the only ones that are ever stored

_EVALUATIONS = 2**24  # of a score in a regression, up to which every speaker gets a slope of its own

_FOLDS = 10  # otherwise


class Identification(NamedTuple):
    """All that one walk through the scores of inputs against references says."""

    histogram: Tensor  # (N,), inputs per rank; where processes keep their rows apart those of all, all else of one
    bits: Tensor  # (P,), local information of each trial
    linked: Tensor  # (P,), whether its true speaker strictly beats all others
    trials: Tensor  # (P,), the row of the input
    speakers: Tensor  # (P,), the true one
    rank_bits: Tensor  # (P,), what its rank discloses, by the histogram of all
    slopes: Tensor  # (B,), of every input


def identify_trials(trials: Trials, scoring: Scoring, slope: float | Tensor | None) -> Identification:
    """What ``identify`` returns, of trials that are formed already. Bits have a gradient, slopes fitted have none."""
    walk = _walks(trials, scoring)
    if slope is None:
        with torch.no_grad():
            slopes = _cross_fit(trials, walk(), type_of_scores(trials, scoring))
    else:
        slopes = torch.as_tensor(slope, device=trials.column.device).expand(len(trials.inputs))
    ranks, several = no_ranks(trials), len(trials.references.speakers) > 1
    bits = ranks.new_full(slopes.shape, 0 if several else torch.nan)
    for tile in walk():
        ranks[:, tile.rows] = rank_inputs(tile)
        if several:
            centred, match, deviation = centre(tile)
            # The deviation divides the slope rather than every score.
            found = local_bits(centred, match, slopes[tile.rows].to(centred.dtype).unsqueeze(1) / deviation)
            bits[tile.rows] = widen(found)
    ranks, bits = shares.totals(ranks, bits)
    return tell(trials, ranks, bits, slopes, histogram_of_ranks(trials, ranks))


def tell(trials: Trials, ranks: Tensor, bits: Tensor, slopes: Tensor, histogram: Tensor) -> Identification:
    """What is known of the inputs that have a reference: from the ranks ``(3, B)`` and the bits ``(B,)`` of each."""
    used = trials.usable.nonzero().squeeze(1)
    above, tied = ranks[:2, used].long()
    tied = tied.clamp(min=1)  # with itself, also where scores are NaN
    of_ranks, linked = bits_of_ranks(histogram, above, tied), (above == 0) & (tied == 1)
    speakers, bits = trials.references.speakers[trials.column[used]], bits[used].to(result_dtype(trials.inputs))
    return Identification(histogram, bits, linked, used, speakers, of_ranks, slopes)


def _walks(trials: Trials, scoring: Scoring) -> Callable[[], Iterator[Tile]]:
    """What walks the scores, any number of times; where they are few, they are compared once."""
    if len(trials.inputs) * len(trials.references.speakers) > _AT_HAND:
        return lambda: walk_shared(trials, scoring)
    tiles = list(walk_shared(trials, scoring))
    return lambda: (tile._replace(scores=tile.scores.clone()) for tile in tiles)


def local_bits(z: Tensor, match: Tensor, slope: Tensor) -> Tensor:
    """LID of each row, ``(P,)``; from the mean of exponentials, not their sum, so that equal scores give 0 exactly."""
    logits = slope * z
    top = logits.detach().amax(dim=1, keepdim=True)
    mean = (logits - top).exp().mean(dim=1, keepdim=True)
    return ((slope * match - top - mean.log()) / math.log(2)).squeeze(1)


def standardise(scores: Tensor, rounding: Tensor) -> Tensor:
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / _deviation(centred, rounding)


def centre(tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of a tile less the mean of their row, in place unless a gradient needs them; those of the matching
    references; and the deviations.
    """
    mean = tile.scores.mean(dim=1, keepdim=True)
    centred = tile.scores - mean if tile.scores.requires_grad else tile.scores.sub_(mean)
    return centred, tile.match - mean, _deviation(centred, tile.rounding)


def _deviation(centred: Tensor, rounding: Tensor) -> Tensor:
    """Population standard deviation of each row; infinite where it is but rounding, so that equal scores stay at 0."""
    deviation = torch.linalg.vector_norm(centred, dim=1, keepdim=True) / math.sqrt(max(1, centred.shape[1]))
    return torch.where(deviation > rounding, deviation, torch.inf)


def equal_up_to(scores: Tensor) -> Tensor:
    unit = torch.finfo(at_least_float32(scores).dtype).eps
    return widen(scores.detach().abs().sum(dim=1, keepdim=True)) / max(1, scores.shape[1]) * unit


def type_of_scores(trials: Trials, scoring: Scoring) -> torch.dtype:
    """As they are compared, where that is known before: widened, processes would exchange twice as many bytes."""
    return result_dtype(trials.inputs) if isinstance(scoring, str) else trials.references.sums.dtype


class Deal(NamedTuple):
    """Which references slopes are fitted on, and which inputs share one."""

    chosen: Tensor  # (B, K), references of each input
    fold: Tensor  # (B,)
    folds: int

    def fit(self, z: Tensor, match: Tensor, is_match: Tensor, usable: Tensor) -> Tensor:
        """The slope for each input ``(B,)``, fitted on the inputs of the other folds.

        From standardised scores of the chosen references ``(B, K)``, those of the own one ``(B, 1)``, and where that is
        among the chosen.
        """
        others = ~torch.eye(self.folds, dtype=torch.bool, device=z.device)
        takes_part = torch.cat([others, torch.zeros_like(others[:1])])
        group = torch.where(usable, self.fold, self.folds)
        return regression.fit_slopes(regression.Rows(z, is_match, match, group, takes_part))[self.fold]


def deal(order: Tensor, column: Tensor, inputs: int) -> Deal:
    """Deal inputs, of so many of all processes, whose speakers are at ``column`` ``(B,)`` of references in order."""
    count, place = len(order), order.argsort()[column]
    stride = min(-(-inputs * count // _AT_HAND), count)
    columns = stride * torch.arange(count // stride, device=order.device)
    # Speakers with trials come first, and are no more than these.
    folds = min(count, inputs if inputs * len(columns) * count <= _EVALUATIONS else _FOLDS)
    # Spacing starts elsewhere for every speaker, so that all references take part, and does so whatever the order of
    # the inputs and the numbers of the speakers.
    return Deal(order[(place * 7919 % stride).unsqueeze(1) + columns], place % folds, folds)


def _cross_fit(trials: Trials, tiles: Iterable[Tile], dtype: torch.dtype) -> Tensor:
    """The slope for each input, ``(B,)``, fitted on other speakers: all of them, or those of the other folds."""
    references, inputs = trials.references, len(trials.inputs)
    if len(references.speakers) < 2 or inputs == 0:
        return references.anchor.new_full((inputs,), torch.nan)
    dealt = deal(order_of_speakers(trials), trials.column, inputs)
    z, match = (references.sums.new_zeros(inputs, width, dtype=dtype) for width in (dealt.chosen.shape[1], 1))
    for tile in tiles:
        centred, own, deviation = centre(tile)
        z[tile.rows] = (centred.gather(1, dealt.chosen[tile.rows]) / deviation).to(dtype)
        match[tile.rows] = (own / deviation).to(dtype)
    z, match = shares.totals(z, match)
    return dealt.fit(z, match, dealt.chosen == trials.column.unsqueeze(1), trials.usable)


def order_of_speakers(trials: Trials) -> Tensor:
    """Columns of the references of all processes in an order that does not depend on speakers' numbers, ``(N,)``.

    Those with trials come first, so that as many of them are dealt to every fold.
    """
    references = trials.references
    count = len(references.units)
    absent = occurrences(torch.where(trials.usable, trials.column, count), count + 1)[:-1] == 0
    keys, absent = shares.of_all(torch.stack([row_keys(references.whole()), widen(absent)], dim=1)).unbind(1)
    by_key = keys.argsort(stable=True)
    return by_key[absent[by_key].argsort(stable=True)]
