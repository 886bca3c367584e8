"""Costs and error rates of speaker verification: how well scores separate the trials."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from vpmetrics._scores.measures import (
    cllr_costs_and_sizes,
    cllr_from_sums,
    eer_of_steps,
    linkability_of_trials,
    min_cllr_of_steps,
    min_dcf_of_steps,
    raw_eer_of_steps,
    tpr_at_fpr_of_steps,
)
from vpmetrics._scores.score_counts import count_by_score, sort_by_class
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import check_positive, check_trials


def cllr(preds: Tensor, target: Tensor, validate_args: bool = True) -> Tensor:
    r"""Compute the cost of taking scores as natural-log likelihood ratios.

    Brümmer and du Preez, 2006.

    .. math::
        C_\mathrm{llr} = \frac{\langle \ln(1 + e^{-s}) \rangle_\mathrm{tar}
        + \langle \ln(1 + e^{s}) \rangle_\mathrm{non}}{2 \ln 2}

    Args:
        preds: Natural-log likelihood ratios in any shape.
        target: 1 (same speaker) or 0 (different), of the same shape.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in bits, from 0; 1 without information, more where scores mislead. NaN with one
        warning where a class is missing. Gradients flow to ``preds``.

    Example:
        >>> import torch
        >>> cllr(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(1.1476)
    """
    check_trials(preds, target, validate_args)
    return cllr_from_sums(*cllr_costs_and_sizes(preds, target)).to(result_dtype(preds))


def min_cllr(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> Tensor:
    r"""Compute the least Cllr that an increasing map of the scores can reach.

    It is the Cllr of their PAV log-likelihood ratios.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in bits, from 0 (fully separated) to 1 (no information); NaN with one warning where a
        class is missing.

    Example:
        >>> import torch
        >>> min_cllr(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(0.5000)
    """
    return min_cllr_of_steps(count_by_score(preds, target, bandwidth, validate_args).ascending).to(
        result_dtype(preds)
    )


def equal_error_rate(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> Tensor:
    r"""Compute the error rate where misses and false alarms are equal, on the ROC's convex hull.

    It never exceeds 1/2, nor the rate of the ROC itself, which challenges print: see
    :func:`raw_equal_error_rate`.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in [0, 0.5]; NaN with one warning where a class is missing.

    Example:
        >>> import torch
        >>> equal_error_rate(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(0.2500)
    """
    return eer_of_steps(count_by_score(preds, target, bandwidth, validate_args).ascending).to(
        result_dtype(preds)
    )


def raw_equal_error_rate(preds: Tensor, target: Tensor, validate_args: bool = True) -> Tensor:
    r"""Compute the error rate where misses and false alarms are equal, on the ROC.

    That is the ROC itself, not its convex hull.

    .. math::
        \mathrm{EER} = P(s_\mathrm{tar} < \theta) = P(s_\mathrm{non} > \theta)

    The ROC is linear across a score that both classes have. The Voice Privacy Challenges of 2020
    and 2022 rank by this rate; Kaldi's ``compute-eer`` rounds it up to the next whole number of
    targets.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in [0, 1], above 1/2 where scores rank targets below non-targets; NaN with one
        warning where a class is missing.

    Example:
        >>> import torch
        >>> raw_equal_error_rate(
        ...     torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1])
        ... )
        tensor(0.5000)
    """
    steps = count_by_score(preds, target, validate_args=validate_args).ascending
    return raw_eer_of_steps(steps).to(result_dtype(preds))


def min_dcf(
    preds: Tensor,
    target: Tensor,
    p_target: float = 0.01,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    validate_args: bool = True,
) -> Tensor:
    r"""Compute the normalised minimum detection cost of NIST's speaker recognition evaluations.

    .. math::
        \min_\theta \frac{c_\mathrm{miss}\, p\, P(s_\mathrm{tar} < \theta)
        + c_\mathrm{fa}\, (1 - p)\, P(s_\mathrm{non} \ge \theta)}
        {\min(c_\mathrm{miss}\, p,\ c_\mathrm{fa}\, (1 - p))}

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        p_target: Prior probability :math:`p` of a target trial.
        c_miss: Cost of a miss.
        c_fa: Cost of a false alarm.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in [0, 1]: 1 is the cost of deciding by the prior alone. NaN with one warning where a
            class is missing.

    Example:
        >>> import torch
        >>> min_dcf(torch.tensor([0.0, 1.0, 2.0, 3.0]), target=torch.tensor([0, 1, 0, 1]))
        tensor(0.5000)
    """
    check_positive("c_miss", c_miss)
    check_positive("c_fa", c_fa)
    if not 0 < p_target < 1:
        raise ValueError(f"Expected `p_target` to lie between 0 and 1, but got {p_target}.")
    steps = count_by_score(preds, target, validate_args=validate_args).ascending
    return min_dcf_of_steps(steps, p_target, c_miss, c_fa).to(result_dtype(preds))


def linkability(preds: Tensor, target: Tensor, validate_args: bool = True) -> Tensor:
    r"""Compute the global linkability of Gómez-Barrero et al. (2018), prior ratio 1.

    .. math::
        D_\mathrm{sys} = \sum_b p(b \mid \mathrm{tar}) \max\!\left(0,
        2 \frac{r_b}{1 + r_b} - 1\right), \quad r_b = \frac{p(b \mid \mathrm{tar})}{p(b \mid
        \mathrm{non})}

    over :math:`\min(\lfloor T / 10 \rfloor, 100)` equal bins of the joint range of the scores.

    The code of the Voice Privacy Challenges integrates by the trapezoid rule, which drops half of
    the first and the last bin, and so prints up to 0.04 less on score files of the challenge, 0.5
    instead of 1 for separated classes. What Vauquier et al. (2025) call linkability is another
    measure: :func:`reidentification_rate`.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in [0, 1], 1 = every target trial can be linked; NaN with one warning where a class
        is missing, targets are fewer than ten, or scores are infinite or constant.

    Example:
        >>> import torch
        >>> preds = torch.cat([torch.arange(20.0), torch.arange(10.0, 30.0)])
        >>> linkability(preds, target=torch.arange(40) >= 20)
        tensor(0.3750)
    """
    check_trials(preds, target, validate_args)
    trials = sort_by_class(widen(preds.detach().flatten()), target.flatten().bool())
    return linkability_of_trials(trials).to(result_dtype(preds))


def tpr_at_fpr(
    preds: Tensor, target: Tensor, fpr: Sequence[float] = (0.01, 0.001), validate_args: bool = True
) -> dict[str, Tensor]:
    """Compute the share of targets above the threshold of a false-positive rate.

    A share ``fpr`` of the non-targets lies above that threshold.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        fpr: False-positive rates between 0 and 1.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Dictionary ``tpr_at_1e-2``, ... of scalars; linear between the points of the ROC at a tie,
        NaN where fewer than ten non-targets exceed the threshold.

    Example:
        >>> import torch
        >>> tpr_at_fpr(torch.arange(200.0) % 150, torch.arange(200) >= 100, fpr=(0.1,))
        {'tpr_at_1e-1': tensor(0.5000)}
    """
    steps = count_by_score(preds, target, validate_args=validate_args).ascending
    return {
        rate_key(rate): tpr_at_fpr_of_steps(steps, rate).to(result_dtype(preds))
        for rate in resolve_rates(fpr)
    }


def resolve_rates(fpr: Sequence[float]) -> tuple[float, ...]:
    """Return rates as a tuple; raise unless all lie between 0 and 1."""
    if isinstance(fpr, Sequence) and not isinstance(fpr, str):
        rates = tuple(fpr)
    else:
        rates = ()
    if not rates or not all(isinstance(rate, float) and 0 < rate < 1 for rate in rates):
        raise ValueError(
            f"Expected `fpr` to be a sequence of rates between 0 and 1, but got {fpr!r}."
        )
    return rates


def rate_key(rate: float) -> str:
    """Return the key of the true-positive rate at a false-positive rate.

    Example:
        >>> rate_key(0.01), rate_key(0.0025)
        ('tpr_at_1e-2', 'tpr_at_2.5e-3')
    """
    digits, _, exponent = f"{rate:e}".partition("e")
    return f"tpr_at_{float(digits):g}e{int(exponent)}"
