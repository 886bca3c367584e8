"""How well scores tell same speaker from different speaker: the costs and error rates of speaker verification."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from vpmetrics._checks import check_trials, warn_undefined
from vpmetrics._precision import result_dtype, widen
from vpmetrics.functional._counts import (
    Steps,
    calibrate,
    count_by_score,
    gather_blocks,
    mean_over_nontargets,
    mean_over_targets,
)

_TARGETS_PER_BIN, _MOST_BINS = 10, 100  # as in the reference implementation of the linkability measure


def cllr(preds: Tensor, target: Tensor, validate_args: bool = True) -> Tensor:
    r"""Cost of taking the scores for natural-log likelihood ratios (Brümmer and du Preez, 2006).

    .. math::
        C_\mathrm{llr} = \frac{\langle \ln(1 + e^{-s}) \rangle_\mathrm{tar}
        + \langle \ln(1 + e^{s}) \rangle_\mathrm{non}}{2 \ln 2}

    Args:
        preds: Natural-log likelihood ratios in any shape.
        target: 1 (same speaker) or 0 (different), of the same shape.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Scalar in bits, from 0: 1 is no better than knowing nothing, more is misleading. NaN with one warning
        where a class is missing. Gradients flow to ``preds``.

    Example:
        >>> cllr(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(1.1476)
    """
    check_trials(preds, target, validate_args)
    return cllr_of_sums(*cllr_sums(preds, target)).to(result_dtype(preds))


def cllr_sums(preds: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Costs in nats and numbers of trials, ``(2,)`` each: non-targets, targets. They add up over batches."""
    scores, is_target = widen(preds.flatten()), target.flatten().bool()
    is_class = is_target == torch.arange(2, device=scores.device).unsqueeze(1)
    return cllr_sums_of_values(scores, is_class)


def cllr_sums_of_values(values: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`cllr_sums` of scores that occur ``counts`` ``(2, V)`` times among non-targets and targets."""
    # Only the side asked for: the other may be infinite, where the cost itself is 0.
    cost = softplus(values * torch.tensor([1, -1], device=values.device).unsqueeze(1))
    return torch.where(counts > 0, counts * cost, 0).sum(-1), counts.sum(-1)


def cllr_of_sums(costs: Tensor, trials: Tensor) -> Tensor:
    """Cllr in bits, from what :func:`cllr_sums` returns."""
    value = (costs / trials).sum() / (2 * math.log(2))
    if bool(value.isnan()):
        missing = bool((trials == 0).any())
        warn_undefined("There are no trials of one kind." if missing else "Some scores are NaN.")
    return value


def min_cllr(preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True) -> Tensor:
    r"""The least Cllr any increasing map of the scores can reach: that of their PAV log-likelihood ratios.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None is exact.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Scalar in bits, from 0 (fully separated) to 1 (nothing to be told); NaN with one warning where a class is
        missing.

    Example:
        >>> min_cllr(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(0.5000)
    """
    return min_cllr_of_steps(count_by_score(preds, target, bandwidth, validate_args).ascending).to(result_dtype(preds))


def equal_error_rate(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> Tensor:
    r"""Error rate where misses and false alarms are equal, on the convex hull of the ROC.

    The hull interpolates between operating points, so the value exists for any scores and depends on their order
    alone. It never exceeds 1/2: scores that rank targets below non-targets are as good as none.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None is exact.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Scalar in [0, 0.5]; NaN with one warning where a class is missing.

    Example:
        >>> equal_error_rate(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(0.2500)
    """
    return eer_of_steps(count_by_score(preds, target, bandwidth, validate_args).ascending).to(result_dtype(preds))


def linkability(preds: Tensor, target: Tensor, validate_args: bool = True) -> Tensor:
    r"""Global linkability of Gómez-Barrero et al. (2018), prior ratio 1.

    .. math::
        D_\mathrm{sys} = \sum_b p(b \mid \mathrm{tar}) \max\!\left(0,
        2 \frac{r_b}{1 + r_b} - 1\right), \quad r_b = \frac{p(b \mid \mathrm{tar})}{p(b \mid \mathrm{non})}

    over :math:`\min(\lfloor T / 10 \rfloor, 100)` equal bins of the joint range of the scores.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        validate_args: Look at the values, too (NaN, labels); stalls an accelerator once.

    Returns:
        Scalar in [0, 1], 1 = every target trial can be linked; NaN with one warning where a class is missing, with
        fewer than ten targets, or with infinite scores or all the same.

    Example:
        >>> preds = torch.cat([torch.arange(20.0), torch.arange(10.0, 30.0)])
        >>> linkability(preds, target=torch.arange(40) >= 20)
        tensor(0.3750)
    """
    check_trials(preds, target, validate_args)
    is_target = target.flatten().bool()
    counts = torch.stack([~is_target, is_target])
    return linkability_of_values(widen(preds.detach().flatten()), counts).to(result_dtype(preds))


def linkability_of_values(values: Tensor, counts: Tensor) -> Tensor:
    """:func:`linkability` of scores that occur ``counts`` ``(2, V)`` times among non-targets and targets."""
    counts = widen(counts)
    trials, seen = counts.sum(-1), values[(counts > 0).any(0)]
    bins = min(int(trials[1]) // _TARGETS_PER_BIN, _MOST_BINS)
    if bins == 0 or not bool(trials[0] > 0):
        warn_undefined(f"Linkability needs {_TARGETS_PER_BIN} target trials and a non-target trial.")
        return trials.new_full((), torch.nan)
    low, high = seen.aminmax()
    if not bool(((high - low) > 0) & (high - low).isfinite()):
        warn_undefined("Linkability needs scores that are finite and not all the same.")
        return trials.new_full((), torch.nan)
    edges = low + (high - low) / bins * torch.arange(1, bins, device=low.device)
    slots = torch.bucketize(values, edges, right=True)
    q, p = counts.new_zeros(2, bins).index_add(-1, slots, counts) / trials[:, None]
    # 2 r / (1 + r) - 1, without the division of p by a q that may be 0.
    link = torch.where(p > q, (p - q) / (p + q), 0)
    return torch.dot(p, link)


def min_cllr_of_steps(steps: Steps) -> Tensor:
    """:func:`min_cllr` of trials already condensed."""
    llr = calibrate(steps)
    cost = mean_over_targets(steps, softplus(-llr)) + mean_over_nontargets(steps, softplus(llr))
    return (cost / (2 * math.log(2))).clamp(max=1)  # knowing nothing, but for rounding


def eer_of_steps(steps: Steps) -> Tensor:
    """:func:`equal_error_rate` of trials already condensed."""
    blocks = gather_blocks(steps, calibrate(steps))
    # Raising the threshold past one block after the other, from accepting all to accepting none.
    miss = pad(blocks.targets.cumsum(0), (1, 0)) / blocks.targets.sum()
    false_alarm = 1 - pad(blocks.nontargets.cumsum(0), (1, 0)) / blocks.nontargets.sum()
    excess = miss - false_alarm
    after = (excess >= 0).to(torch.uint8).argmax().clamp(min=1)
    share = excess[after - 1] / (excess[after - 1] - excess[after])
    return torch.lerp(miss[after - 1], miss[after], share)
