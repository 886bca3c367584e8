r"""Local information disclosure: what each single trial gives away, in bits (arXiv 2607.06259, 2026).

A rank says who came first, not by how much. Here the scores of one input against N references become a probability of
each, and the disclosure of the trial is what that leaves of the :math:`\log_2 N` bits it takes to name the speaker.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import check_identification, warn_undefined
from vpmetrics._precision import at_least_float32, result_dtype, widen
from vpmetrics._sides import Sides, row_keys
from vpmetrics.functional import _local_slope as regression
from vpmetrics.functional._references import Tile, Trials, prepare_trials, trials_of_sides, walk
from vpmetrics.functional.rank import RankTally, histogram_of_trials, rank_disclosure, ranks_of
from vpmetrics.scoring import Scoring

_AT_HAND = 2**19  # scores that slopes are fitted on, and the only ones that are ever stored
_EVALUATIONS = 2**24  # of a score in a regression, up to which every speaker gets a slope of its own
_FOLDS = 10  # otherwise


class Identification(NamedTuple):
    """All that one walk through the scores of inputs against references says."""

    histogram: Tensor  # (N,), inputs per rank
    bits: Tensor  # (P,), local information of each trial
    linked: Tensor  # (P,), whether its true speaker strictly beats all others
    trials: Tensor  # (P,), the row of the input


def local_information(scores: Tensor, target_index: Tensor, slope: float | Tensor) -> Tensor:
    r"""Information on its true speaker that each trial discloses, in bits.

    .. math::
        \mathrm{LID}_i = \log_2 (N p_{i,t_i}), \qquad p_i = \mathrm{softmax}(w z_i)

    with :math:`z_i` the scores of trial i against N references, less their mean and divided by their population
    standard deviation; equal scores stay at :math:`z = 0` and disclose 0 bits.

    Args:
        scores: Floating tensor of shape ``(P, N)``, higher = more alike.
        target_index: Integer tensor of shape ``(P,)``, the column of the true speaker.
        slope: The slope :math:`w`: a number, or one per trial of shape ``(P,)``. See ``fit_local_slope``.

    Returns:
        Bits of shape ``(P,)``, at most :math:`\log_2 N`, below 0 where the trial misleads; float32 or wider.
        Differentiable in the scores and the slope.

    Example:
        >>> scores = torch.tensor([[0.9, 0.7, 0.4, 1.1, 1.2, 0.4]])
        >>> local_information(scores, torch.tensor([3]), slope=1.5)
        tensor([0.9000])
    """
    check_identification(scores, target_index)
    wide = widen(scores)
    z = _standardise(wide, _equal_up_to(scores))
    slopes = torch.as_tensor(slope, dtype=wide.dtype, device=wide.device).reshape(-1, 1)
    return _bits(z, z.gather(1, target_index.unsqueeze(1)), slopes).to(result_dtype(scores))


def local_information_disclosure(scores: Tensor, target_index: Tensor, slope: float | Tensor) -> dict[str, Tensor]:
    r"""Summary of ``local_information`` over all trials.

    Args:
        scores: Floating tensor of shape ``(P, N)``, higher = more alike.
        target_index: Integer tensor of shape ``(P,)``, the column of the true speaker.
        slope: Slope of the softmax; fit it on other speakers than these, with ``fit_local_slope``.

    Returns:
        Dict of scalars, float32 or wider: ``alid``, the mean; ``pdr`` and ``ndr``, the share of trials above 0 bits
        and the rest; ``lid_pos`` and ``lid_neg``, the means of these two sides, NaN for one without trials;
        ``lid_max``; and ``link_rate``, the share of trials whose true speaker strictly beats all others. All NaN, with
        a warning, for fewer than two references or no trial.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.8, 0.8], [0.7, 0.6, 0.6, 0.6]])
        >>> values = local_information_disclosure(scores, torch.tensor([0, 0]), slope=1.5)
        >>> values["alid"], values["link_rate"]
        (tensor(1.8705), tensor(1.))
    """
    bits = local_information(scores, target_index, slope)
    linked = (scores >= scores.gather(1, target_index.unsqueeze(1))).sum(dim=1) == 1
    return summarise_information(bits if scores.shape[1] > 1 else bits * torch.nan, linked)


def fit_local_slope(scores: Tensor, target_index: Tensor) -> Tensor:
    r"""Slope of a logistic regression of "is the true speaker" on standardised scores, on a development set.

    The regression has an offset, no penalty, and weighs both classes equally. Where a threshold separates them, no
    slope is steep enough: one more target where the nearest non-target is, and one more non-target where the nearest
    target is, then bound it.

    Args:
        scores: Floating tensor of shape ``(P, N)``, trials of other speakers than those the slope is applied to.
        target_index: Integer tensor of shape ``(P,)``, the column of the true speaker.

    Returns:
        Scalar, float32 or wider; NaN for fewer than two references, or no trial.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.5, 0.4], [0.3, 0.7, 0.4]])
        >>> fit_local_slope(scores, torch.tensor([0, 2, 1]))
        tensor(2.3679)
    """
    check_identification(scores, target_index)
    if scores.numel() == 0 or scores.shape[1] < 2:
        warn_undefined("The slope of local information needs trials with two references at least.")
        return scores.new_full((), torch.nan, dtype=result_dtype(scores))
    with torch.no_grad():
        z, column = _standardise(widen(scores), _equal_up_to(scores)), target_index.unsqueeze(1)
        is_match = torch.zeros_like(z, dtype=torch.bool).scatter(1, column, True)
        rows = regression.Rows(z, is_match, z.gather(1, column), torch.ones_like(column, dtype=torch.bool))
        return regression.fit_slopes(rows)[0].to(result_dtype(scores))


def identify(
    inputs: Tensor,
    speakers: Tensor,
    references: Tensor | None = None,
    reference_speakers: Tensor | None = None,
    scoring: Scoring = "cosine",
    slope: float | Tensor | None = None,
) -> Identification:
    """Rank histogram and local information of embeddings, each input scored against each reference in tiles.

    References and protocols are those of ``rank_histogram``. Without a ``slope`` it is cross-fitted: the trials of each
    speaker get the slope fitted on those of all other speakers. Where the scores times the speakers are more than
    sixteen million, the speakers are dealt to ten folds, in an order that their references determine, and share the
    slope fitted on the other nine; the numbers that speakers go by never matter. Of more than half a million scores
    slopes are fitted on those of all true speakers and evenly spaced ones of the others, which moves the mean by some
    0.0001 bits.

    Args:
        inputs: Floating tensor of shape ``(B, D)``.
        speakers: Integer tensor of shape ``(B,)``, the speaker of each input.
        references: Floating tensor of shape ``(M, D)``, or ``(B, D)`` for leave-one-out; None for the inputs.
        reference_speakers: Integer tensor of shape ``(M,)``, or None for leave-one-out.
        scoring: ``"cosine"``, for embeddings, ``"euclidean"``, for histograms, or any other way to compare two
            embeddings that :mod:`vpmetrics.scoring` has.
        slope: Slope of the softmax, or None to cross-fit it.

    Returns:
        ``Identification(histogram (N,), bits (P,), linked (P,), trials (P,))``; trials are the inputs whose speaker has
        a reference left, in their order. Bits are NaN for fewer than two references, or where a slope is to be fitted
        and no other speaker has trials.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(40) % 8
        >>> inputs = torch.randn(8, 16, generator=generator)[speakers] + torch.randn(40, 16, generator=generator)
        >>> values = identify(inputs, speakers)
        >>> values.histogram
        tensor([37.,  3.,  0.,  0.,  0.,  0.,  0.,  0.])
        >>> int(values.linked.sum()), len(values.bits), bool((values.bits <= 3).all())
        (37, 40, True)
    """
    return identify_trials(prepare_trials(inputs, speakers, references, reference_speakers), scoring, slope)


def identify_trials(trials: Trials, scoring: Scoring, slope: float | Tensor | None) -> Identification:
    """What ``identify`` returns, of trials that are formed already. Bits have a gradient, slopes fitted have none."""
    if slope is None:
        with torch.no_grad():
            slopes = _cross_fit(trials, scoring)
    else:
        slopes = torch.as_tensor(slope, device=trials.column.device).expand(len(trials.inputs))
    tally = RankTally(trials)
    bits = slopes.new_full(slopes.shape, torch.nan, dtype=result_dtype(trials.inputs))
    linked = torch.zeros_like(trials.usable)
    for tile in walk(trials, scoring):
        above, tied = ranks_of(tile)
        tally.add(tile, above, tied)
        linked[tile.rows] = (above == 0) & (tied == 1)
        if tile.scores.shape[1] > 1:
            centred, match, deviation = _centre(tile)
            # The deviation divides the slope rather than every score.
            bits[tile.rows] = _bits(centred, match, slopes[tile.rows].to(centred.dtype).unsqueeze(1) / deviation)
    used = trials.usable.nonzero().squeeze(1)
    return Identification(tally.histogram(), bits[used], linked[used], used)


def disclose_identity(
    sides: Sides,
    condition: str,
    scoring: Scoring,
    slope: float | None = None,
    model: str = "empirical",
    bandwidth: float | None = None,
) -> tuple[dict[str, Tensor], Identification]:
    """Every scalar of identification in one condition, of ranks and of local information, and what it comes from."""
    trials = trials_of_sides(sides, condition)
    found = identify_trials(trials, scoring, slope)
    if bandwidth is not None:
        found = found._replace(histogram=histogram_of_trials(trials, scoring, bandwidth))
    return rank_disclosure(found.histogram, model) | summarise_information(found.bits, found.linked), found


def summarise_information(bits: Tensor, linked: Tensor) -> dict[str, Tensor]:
    """Summary of trials whose local information is known already, as ``identify`` returns it.

    Args:
        bits: Floating tensor of shape ``(P,)``, local information of each trial.
        linked: Boolean tensor of shape ``(P,)``, whether its true speaker strictly beats all others.

    Returns:
        The dict of scalars that ``local_information_disclosure`` returns.

    Example:
        >>> values = summarise_information(torch.tensor([2.0, -1.0]), linked=torch.tensor([True, False]))
        >>> values["alid"], values["lid_pos"], values["link_rate"]
        (tensor(0.5000), tensor(2.), tensor(0.5000))
    """
    wide, links = widen(bits), widen(linked)
    if len(bits) == 0 or bool(wide.isnan().any()):
        warn_undefined("Local information needs two references, trials of two speakers, and numbers.")
        # One trial of which nothing is known makes every mean, share and extreme NaN.
        wide = links = wide.new_full((1,), torch.nan)
    positive = torch.where(wide.isnan(), torch.nan, (wide > 0).to(wide.dtype))
    negative = 1 - positive
    values = {
        "alid": wide.mean(),
        "pdr": positive.mean(),
        "ndr": negative.mean(),
        "lid_pos": (positive * wide).sum() / positive.sum(),
        "lid_neg": (negative * wide).sum() / negative.sum(),
        "lid_max": wide.amax(),
        "link_rate": links.mean(),
    }
    return {name: value.to(result_dtype(bits)) for name, value in values.items()}


def _bits(z: Tensor, match: Tensor, slope: Tensor) -> Tensor:
    """LID of each row, ``(P,)``; from the mean of exponentials, not their sum, so that equal scores give 0 exactly."""
    logits = slope * z
    top = logits.detach().amax(dim=1, keepdim=True)
    mean = (logits - top).exp().mean(dim=1, keepdim=True)
    return ((slope * match - top - mean.log()) / math.log(2)).squeeze(1)


def _standardise(scores: Tensor, rounding: Tensor) -> Tensor:
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / _deviation(centred, rounding)


def _centre(tile: Tile) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of a tile less the mean of their row, in place; those of the matching references; and the deviations."""
    mean = tile.scores.mean(dim=1, keepdim=True)
    centred = tile.scores.sub_(mean)
    return centred, tile.match - mean, _deviation(centred, tile.rounding)


def _deviation(centred: Tensor, rounding: Tensor) -> Tensor:
    """Population standard deviation of each row; infinite where it is but rounding, so that equal scores stay at 0."""
    deviation = torch.linalg.vector_norm(centred, dim=1, keepdim=True) / math.sqrt(max(1, centred.shape[1]))
    return torch.where(deviation > rounding, deviation, torch.inf)


def _equal_up_to(scores: Tensor) -> Tensor:
    unit = torch.finfo(at_least_float32(scores).dtype).eps
    return widen(scores.detach().abs().sum(dim=1, keepdim=True)) / max(1, scores.shape[1]) * unit


def _cross_fit(trials: Trials, scoring: Scoring) -> Tensor:
    """The slope for each input, ``(B,)``, fitted on other speakers: all of them, or those of the other folds."""
    references, inputs = trials.references, len(trials.inputs)
    count = len(references.speakers)
    if count < 2 or inputs == 0:
        return references.anchor.new_full((inputs,), torch.nan)
    order = _order_of_speakers(trials)
    place = order.argsort()[trials.column]
    tiles = [_rows(tile, trials.column[tile.rows], place[tile.rows], order, inputs) for tile in walk(trials, scoring)]
    z, is_match, match = (torch.cat(part) for part in zip(*tiles, strict=True))
    folds = count if z.numel() * count <= _EVALUATIONS else min(count, _FOLDS)
    fold = place % folds
    takes_part = (fold.unsqueeze(1) != torch.arange(folds, device=fold.device)) & trials.usable.unsqueeze(1)
    return regression.fit_slopes(regression.Rows(z, is_match, match, takes_part))[fold]


def _order_of_speakers(trials: Trials) -> Tensor:
    """Columns of the references in an order that does not depend on the numbers of their speakers, ``(N,)``.

    Those with trials come first, so that as many of them are dealt to every fold.
    """
    references = trials.references
    present = torch.zeros_like(references.counts).index_add(0, trials.column, trials.usable.long()) > 0
    by_key = row_keys(references.anchor + references.sums / references.counts.unsqueeze(1)).argsort(stable=True)
    return by_key[(~present)[by_key].to(torch.uint8).argsort(stable=True)]


def _rows(tile: Tile, column: Tensor, place: Tensor, order: Tensor, inputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised scores of a tile to fit the slope on: all, or evenly spaced ones where all would be too many.

    The spacing starts elsewhere for every speaker, so that all references take part, and does so whatever the order of
    the inputs and the numbers of the speakers.
    """
    centred, match, deviation = _centre(tile)
    columns = centred.shape[1]
    stride = min(-(-inputs * columns // _AT_HAND), columns)
    first = (place * 7919 % stride).unsqueeze(1)
    chosen = order[first + stride * torch.arange(columns // stride, device=centred.device)]
    z = centred.gather(1, chosen) / deviation
    return z, chosen == column.unsqueeze(1), match / deviation
