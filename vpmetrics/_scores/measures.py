"""What is calculated from counts per step: the formulas behind every metric of scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._checks import warn_first
from vpmetrics._precision import widen
from vpmetrics._scores.ordered import Counted, Ordered
from vpmetrics._scores.steps import (
    ScoreCounts,
    Steps,
    calibrate,
    mean_over,
)

TAG_LETTERS = "0ABCDEF"  # 0 for exactly 0, A below the first bound, and so on
TAG_BOUNDS = (1.0, 2.0, 4.0, 5.0, 6.0)


def evidence(llr: Tensor) -> Tensor:
    r"""What one target trial of log-likelihood ratio ``llr`` adds to D_ECE, before averaging (eq. 13).

    .. math:: Z(l) = \tfrac12 + \frac{l - (e^l - 1)}{(e^l - 1)^2}, \quad Z(-\infty) = -\infty,\ Z(0) = 0,\
        Z(\infty) = \tfrac12

    Args:
        llr: Natural-log likelihood ratios of any shape; for a non-target trial, with the sign turned.

    Returns:
        Values of the same shape, at most 1/2.

    Example:
        >>> evidence(torch.tensor([-1.0, 0.0, 1.0, torch.inf]))
        tensor([-0.4207,  0.0000,  0.2567,  0.5000])
    """
    # The closed form cancels near 0; the branch not taken must stay finite, for the gradient of the one that is.
    small = llr.abs() < 0.02
    x = torch.where(small, llr, 0)
    series = x * (1 / 3 - x * (1 / 12 - x * (1 / 180 + x * (1 / 720 - x * (1 / 5040 + x / 30240)))))
    capped = torch.where(small, 1, llr.clamp(max=40.0))
    growth = capped.expm1()
    return torch.where(small, series, 0.5 + capped / growth.square() - 1 / growth)


def least_cross_entropy(steps: Steps, prior_log_odds: Tensor) -> Tensor:
    """Empirical cross-entropy in bits at each prior, with the scores calibrated by PAV."""
    blocks = steps.blocks
    odds = prior_log_odds[:, None]
    miss = mean_over(blocks.targets, softplus(-blocks.llr - odds))
    false_alarm = mean_over(blocks.nontargets, softplus(blocks.llr + odds))
    return cross_entropy(miss, false_alarm, prior_log_odds)


def actual_cross_entropy(values: Tensor, counts: Tensor, prior_log_odds: Tensor) -> Tensor:
    """Empirical cross-entropy in bits at each prior of log-likelihood ratios that occur ``counts`` ``(2, V)`` times.

    Many values are put together into cells of the axis first: a row of all for each of many priors would not fit.
    """
    (nontargets, targets), counts = _few(widen(values), widen(counts))
    odds = prior_log_odds[:, None]
    return cross_entropy(
        mean_over(counts[1], softplus(-targets - odds)), mean_over(counts[0], softplus(nontargets + odds)), odds[:, 0]
    )


def _few(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of the values of each class in many equal cells, and their counts; infinite values in their own."""
    finite = values[values.isfinite()]
    if len(values) <= _CELLS or len(finite) == 0:
        return values.expand(2, -1), counts
    low, high = finite.aminmax()
    place = (values - low) * ((_CELLS - 1) / (high - low).clamp(min=torch.finfo(low.dtype).tiny))
    cell = place.nan_to_num().clamp(-1, _CELLS).floor().long() + 1
    empty = values.new_zeros(2, _CELLS + 2)
    number = empty.index_add(1, cell, counts)
    return empty.index_add(1, cell, torch.where(counts > 0, counts * values, 0)) / number, number


def entropy_of_prior(prior_log_odds: Tensor) -> Tensor:
    """Binary entropy in bits at natural-log odds (eq. 12)."""
    return cross_entropy(softplus(-prior_log_odds), softplus(prior_log_odds), prior_log_odds)


def cross_entropy(target_cost: Tensor, nontarget_cost: Tensor, prior_log_odds: Tensor) -> Tensor:
    """Costs of the two classes in nats, weighted by the prior, in bits."""
    return (prior_log_odds.sigmoid() * target_cost + (-prior_log_odds).sigmoid() * nontarget_cost) / math.log(2)


def disclosure_of_counts(counts: ScoreCounts, dtype: torch.dtype) -> dict[str, Tensor]:
    """What :func:`zebra_disclosure` returns, from trials already condensed."""
    l_w = _worst(counts.ascending)
    return {
        "d_ece": expected_disclosure(counts.ascending).to(dtype),
        "l_w": l_w.to(dtype),
        "tag": tag_number(l_w).to(dtype),  # a whole number, but loggers want floating ones
        "d_ece_reversed": expected_disclosure(counts.descending).to(dtype),
    }


def expected_disclosure(steps: Steps) -> Tensor:
    """D_ECE of trials already condensed, in bits."""
    llr, targets, nontargets = steps.blocks
    return (mean_over(targets, evidence(llr)) + mean_over(nontargets, evidence(-llr))) / (2 * math.log(2))


def disclosure_of_llr(llr: Tensor, is_target: Tensor) -> Tensor:
    """D_ECE in bits of trials by log-likelihood ratios, wherever these come from; NaN where a class is missing."""
    return (evidence(llr[is_target]).mean() + evidence(-llr[~is_target]).mean()) / (2 * math.log(2))


def _worst(steps: Steps) -> Tensor:
    # Smooth counts are positive everywhere: what holds less than a thousandth of a trial holds none.
    seen = (steps.targets > 1e-3) | (steps.nontargets > 1e-3) | steps.targets.isnan()
    # A block made of Laplace's labels alone was never the evidence of any trial.
    strongest = calibrate(steps, laplace=True).abs().masked_fill(~seen, 0).amax()
    return strongest / math.log(10)


def tag_number(l_w: Tensor) -> Tensor:
    number = torch.stack([l_w > 0, *(l_w >= bound for bound in TAG_BOUNDS)]).sum(0)
    return torch.where(l_w.isnan(), -1, number)


_CELLS = 1 << 14  # of the axis, for curves over the prior
_TARGETS_PER_BIN, _MOST_BINS = 10, 100  # as in the reference implementation of the linkability measure


def cllr_sums(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Costs in nats and numbers of trials, ``(2,)`` each: non-targets, targets. They add up over batches."""
    scores, is_target = widen(preds.flatten()), target.flatten().bool()
    is_class = is_target == torch.arange(2, device=scores.device).unsqueeze(1)
    return Counted(scores, is_class).cllr_sums()


def cllr_of_sums(costs: Tensor, trials: Tensor) -> Tensor:
    """Cllr in bits, from what :func:`cllr_sums` returns."""
    value = (costs / trials).sum() / (2 * math.log(2))
    warn_first({"There are no trials of one kind.": (trials == 0).any(), "Some scores are NaN.": value.isnan()})
    return value


def linkability_of(trials: Ordered | Counted) -> Tensor:
    """:func:`linkability` of trials in order, or of scores with counts."""
    edges = edges_of_linkability(trials)
    return torch.where(edges[0].isnan(), torch.nan, linkability_of_bins(widen(trials.between(edges))))


def edges_of_linkability(trials: Ordered | Counted) -> Tensor:
    """Between the equal bins that scores are put in, ``(99,)``: infinite beyond the last of them.

    NaN and one warning where it is not defined.
    """
    sizes, (low, high) = widen(trials.sizes), trials.span()
    bins = (sizes[1] / _TARGETS_PER_BIN).floor().clamp(max=_MOST_BINS)
    few, flat = (bins == 0) | (sizes[0] == 0), ~((high > low) & (high - low).isfinite())
    warn_first(
        {
            f"Linkability needs {_TARGETS_PER_BIN} target trials and a non-target trial.": few,
            "Linkability needs scores that are finite and not all the same.": flat,
        }
    )
    place = torch.arange(1, _MOST_BINS, device=low.device)
    edges = torch.where(place < bins, low + (high - low) / bins.to(low.dtype) * place, torch.inf)
    return torch.where(few | flat, torch.nan, edges)


def linkability_of_bins(counts: Tensor) -> Tensor:
    """The same from the numbers ``(2, ..., B)`` of non-targets and of targets in each bin."""
    q, p = counts / counts.sum(-1, keepdim=True)
    # 2 r / (1 + r) - 1, without the division of p by a q that may be 0.
    link = torch.where(p > q, (p - q) / (p + q), 0)
    return torch.sum(p * link, dim=-1)


def min_cllr_of_steps(steps: Steps) -> Tensor:
    """:func:`min_cllr` of trials already condensed."""
    llr, targets, nontargets = steps.blocks
    cost = mean_over(targets, softplus(-llr)) + mean_over(nontargets, softplus(llr))
    return (cost / (2 * math.log(2))).clamp(max=1)  # knowing nothing, but for rounding


def eer_of_steps(steps: Steps) -> Tensor:
    """:func:`equal_error_rate` of trials already condensed, ``(...)`` for steps ``(..., S)``."""
    _, targets, nontargets = steps.blocks
    # Raising the threshold past one block after the other, from accepting all to accepting none.
    miss, rejected = (pad(counts.cumsum(-1), (1, 0)) / counts.sum(-1, keepdim=True) for counts in (targets, nontargets))
    false_alarm = 1 - rejected
    excess = miss - false_alarm
    after = (excess >= 0).to(torch.uint8).argmax(-1, keepdim=True).clamp(min=1)
    start, end = excess.gather(-1, after - 1), excess.gather(-1, after)
    return torch.lerp(miss.gather(-1, after - 1), miss.gather(-1, after), start / (start - end)).squeeze(-1)


def raw_eer_of_steps(steps: Steps) -> Tensor:
    """:func:`raw_equal_error_rate` of trials already condensed, ``(...)`` for steps ``(..., S)``."""
    tied = steps.nontargets if steps.tied is None else steps.tied
    # Two parts of every step, and a threshold after each: what ties with the targets, and what lies above them.
    missed = torch.stack([steps.targets, torch.zeros_like(tied)], dim=-1)
    rejected = torch.stack([tied, steps.nontargets - tied], dim=-1)
    missed, rejected = (pad(part.flatten(-2).cumsum(-1), (1, 0)) for part in (missed, rejected))
    # Miss rate less false-alarm rate, times both numbers of trials: whole numbers, so that equal rates are equal.
    excess = missed * rejected[..., -1:] - (rejected[..., -1:] - rejected) * missed[..., -1:]
    after = (excess >= 0).to(torch.uint8).argmax(-1, keepdim=True).clamp(min=1)
    start, end = excess.gather(-1, after - 1), excess.gather(-1, after)
    crossing = torch.lerp(missed.gather(-1, after - 1), missed.gather(-1, after), start / (start - end))
    return (crossing / missed[..., -1:]).squeeze(-1)


def min_dcf_of_steps(steps: Steps, p_target: float, c_miss: float, c_fa: float) -> Tensor:
    """:func:`min_dcf` of trials already condensed, ``(...)`` for steps ``(..., S)``."""
    # Between two steps, or beyond them, lies the best threshold: anywhere else some non-target is accepted for nothing.
    missed, rejected = (pad(counts.cumsum(-1), (1, 0)) for counts in (steps.targets, steps.nontargets))
    false_alarm = (rejected[..., -1:] - rejected) / rejected[..., -1:]
    weights = c_miss * p_target, c_fa * (1 - p_target)
    return ((weights[0] * missed / missed[..., -1:] + weights[1] * false_alarm) / min(weights)).amin(-1)
