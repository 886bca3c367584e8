"""Local information disclosure: the bits of each single trial (arXiv 2607.06259, 2026)."""

from __future__ import annotations

import torch
from torch import Tensor

from vpmetrics._identification import identification
from vpmetrics._identification.identification import Identification, local_bits, standardize_scores
from vpmetrics._identification.references import validate_and_form_trials
from vpmetrics._scores.calibration import fit_logistic_slopes
from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.dtypes import at_least_float32, result_dtype, widen
from vpmetrics._util.validation import check_identification_shapes, check_slopes, warn_undefined


def local_information(scores: Tensor, target_index: Tensor, slope: float | Tensor) -> Tensor:
    r"""Compute the information on its true speaker that each trial discloses, in bits.

    .. math::
        \mathrm{LID}_i = \log_2 (N p_{i,t_i}), \qquad p_i = \mathrm{softmax}(w z_i)

    with :math:`z_i` the scores of trial i against N references, standardised by their mean and
    population standard deviation; equal scores have :math:`z = 0` and disclose 0 bits.

    Args:
        scores: Floating tensor of shape ``(P, N)``, higher = more alike.
        target_index: Integer tensor of shape ``(P,)``, the column of the true speaker.
        slope: The slope :math:`w`: a number, or one per trial of shape ``(P,)``. See
            ``fit_local_slope``.

    Returns:
        Bits of shape ``(P,)``, at most :math:`\log_2 N`, below 0 where the trial misleads; float32
        or wider. Differentiable in the scores and the slope.

    Example:
        >>> scores = torch.tensor([[0.9, 0.7, 0.4, 1.1, 1.2, 0.4]])
        >>> local_information(scores, torch.tensor([3]), slope=1.5)
        tensor([0.9000])
    """
    check_identification_shapes(scores, target_index)
    if slope is None:
        raise TypeError(
            "Expected `slope` to be a number or a tensor, but got None: see `fit_local_slope`."
        )
    check_slopes(slope, len(scores))
    z = standardize_scores(scores)
    slopes = torch.as_tensor(slope, dtype=z.dtype, device=z.device).reshape(-1, 1)
    return local_bits(z, z.gather(1, target_index.unsqueeze(1)), slopes).to(result_dtype(scores))


def local_information_disclosure(
    scores: Tensor, target_index: Tensor, slope: float | Tensor
) -> dict[str, Tensor]:
    r"""Compute the summary of ``local_information`` over all trials.

    Args:
        scores: Floating tensor of shape ``(P, N)``, higher = more alike.
        target_index: Integer tensor of shape ``(P,)``, the column of the true speaker.
        slope: Slope of the softmax; fit it on other speakers than these, with ``fit_local_slope``.

    Returns:
        Dict of scalars, float32 or wider, as :class:`vpmetrics.LocalInformationDisclosure` returns
        it. All NaN, with a warning, for fewer than two references or no trial.

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
    """Fit the slope of a logistic regression of "is the true speaker" on standardised scores.

    The scores are those of a development set.

    The regression weighs both classes equally. Where a threshold separates them, one more target at
    the nearest non-target, and one more non-target at the nearest target, bound the slope.

    Args:
        scores: Floating tensor of shape ``(P, N)``, trials of other speakers than those the slope
            is applied to.
        target_index: Integer tensor of shape ``(P,)``, the column of the true speaker.

    Returns:
        Scalar, float32 or wider; NaN for fewer than two references, or no trial.

    Example:
        >>> scores = torch.tensor([[0.9, 0.1, 0.4], [0.2, 0.5, 0.4], [0.3, 0.7, 0.4]])
        >>> fit_local_slope(scores, torch.tensor([0, 2, 1]))
        tensor(2.3679)
    """
    check_identification_shapes(scores, target_index)
    if scores.numel() == 0 or scores.shape[1] < 2:
        warn_undefined("The slope of local information needs trials with two references at least.")
        return scores.new_full((), torch.nan, dtype=result_dtype(scores))
    with torch.no_grad():
        z = standardize_scores(scores)
        column = target_index.unsqueeze(1)
        is_match = torch.zeros_like(z, dtype=torch.bool).scatter(1, column, True)
        slopes = fit_logistic_slopes(
            z, is_match, z.gather(1, column), torch.zeros_like(target_index), num_folds=1
        )
        return slopes[0].to(result_dtype(scores))


def identify(
    inputs: Tensor,
    speakers: Tensor,
    references: Tensor | None = None,
    reference_speakers: Tensor | None = None,
    scoring: Scoring = "cosine",
    slope: float | Tensor | None = None,
) -> Identification:
    """Compute the rank histogram and local information of embeddings.

    Each input is scored against each reference.

    References and protocols are those of ``rank_histogram``. Without a ``slope`` it is
    cross-fitted: the trials of each speaker get the slope fitted on all other speakers, or, with
    more than 256 speakers, on nine of ten folds. With more than half a million scores, slopes are
    fitted on the target scores and an evenly spaced part of the others, which moves the mean by
    some 0.0001 bits.

    Args:
        inputs: Floating tensor of shape ``(B, D)``.
        speakers: Integer tensor of shape ``(B,)``, the speaker of each input.
        references: As in ``rank_histogram``.
        reference_speakers: As there.
        scoring: As there.
        slope: Slope of the softmax, or None to cross-fit it.

    Returns:
        ``Identification(histogram (N,), bits (P,), linked (P,), trials (P,), speakers (P,),
        rank_bits (P,), ...)``: trials are the inputs whose speaker has a reference left. Bits are
        NaN for fewer than two references, or where a slope is to be fitted and no other speaker has
        trials. The mean of ``rank_bits`` is MeanD.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(40) % 8
        >>> inputs = torch.randn(8, 16, generator=generator)[speakers] + torch.randn(
        ...     40, 16, generator=generator
        ... )
        >>> identify(inputs, speakers).histogram
        tensor([38.,  2.,  0.,  0.,  0.,  0.,  0.,  0.])
    """
    check_slopes(slope, len(inputs))
    trials = validate_and_form_trials(inputs, speakers, references, reference_speakers)
    return identification.identify(trials, scoring, slope)


def summarise_information(bits: Tensor, linked: Tensor) -> dict[str, Tensor]:
    """Compute the summary of trials from their local information, as ``identify`` returns it.

    Args:
        bits: Floating tensor of shape ``(P,)``, local information of each trial.
        linked: Boolean tensor of shape ``(P,)``, whether its true speaker strictly beats all
            others.

    Returns:
        Scalars, float32 or wider: ``alid``, the mean of the bits; ``pdr`` and ``ndr``, the shares
        of trials with positive bits and of all others, which disclose nothing or mislead;
        ``lid_pos`` and ``lid_neg``, the mean bits of these two, NaN where there are none;
        ``lid_max``, the largest bits; ``link_rate``, the share of linked trials. All are NaN, with
        a warning, without trials or where a trial has NaN.

    Example:
        >>> values = summarise_information(
        ...     torch.tensor([2.0, -1.0]), linked=torch.tensor([True, False])
        ... )
        >>> values["alid"], values["lid_pos"], values["link_rate"]
        (tensor(0.5000), tensor(2.), tensor(0.5000))
    """
    wide_bits = widen(bits)
    num_trials = len(bits)
    # Bits that are 0 but for the rounding of some operations count as 0, and 0 is not positive.
    rounding = 16 * torch.finfo(at_least_float32(bits).dtype).eps
    is_positive = wide_bits > rounding
    num_positive = widen(is_positive).sum()
    num_others = widen(~is_positive).sum()
    # One more number, since there is no largest of none.
    bits_or_lowest = torch.cat([wide_bits, wide_bits.new_full((1,), -torch.inf)])
    values = {
        "alid": wide_bits.mean(),
        "pdr": num_positive / num_trials,
        "ndr": num_others / num_trials,
        "lid_pos": torch.where(is_positive, wide_bits, 0).sum() / num_positive,
        "lid_neg": torch.where(is_positive, 0, wide_bits).sum() / num_others,
        "lid_max": bits_or_lowest.amax(),
        "link_rate": widen(linked).mean(),
    }
    is_undefined = wide_bits.isnan().any() | (num_trials == 0)
    warn_undefined(
        "Local information needs two references, trials of two speakers, and numbers.", is_undefined
    )
    dtype = result_dtype(bits)
    return {
        key: torch.where(is_undefined, torch.nan, value).to(dtype) for key, value in values.items()
    }
