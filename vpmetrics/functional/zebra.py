r"""ZEBRA: the bits about identity that scores disclose, in expectation and at worst.

Nautsch et al., "The Privacy ZEBRA", Interspeech 2020; Noé et al., "Towards a unified assessment
framework of speech pseudonymisation", Computer Speech and Language 72, 2022. Equation numbers are
those of the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from vpmetrics._scores.calibration import transferred_llr
from vpmetrics._scores.condition_scores import collect_trial_scores
from vpmetrics._scores.measures import (
    entropy_of_costs,
    llr_disclosure,
    minimum_cross_entropy,
    prior_entropy,
    tag_number,
)
from vpmetrics._scores.score_counts import StepsOfBothSigns, count_by_score
from vpmetrics._scores.speaker_disclosure import (
    SpeakerDisclosure,
    TrialSideDisclosure,
    compute_disclosure_of_trials,
)
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.scalar import TAG_LETTERS
from vpmetrics._util.validation import (
    check_floating,
    check_speakers_of_trials,
    check_trials,
    collect_warnings,
    warn_undefined,
)


def zebra_disclosure(
    preds: Tensor, target: Tensor, bandwidth: float | None = None, validate_args: bool = True
) -> dict[str, Tensor]:
    r"""Compute expected and worst-case disclosure of calibrated scores (eq. 13 and section 5.2).

    .. math::
        D_\mathrm{ECE} = \frac{\langle Z(l) \rangle_\mathrm{tar} + \langle Z(-l)
        \rangle_\mathrm{non}}{2 \ln 2}, \qquad l_w = \max |l'| / \ln 10

    with :math:`Z(l) = \frac12 + \frac{l - (e^l - 1)}{(e^l - 1)^2}`, the log-likelihood ratios
    :math:`l` of PAV, and :math:`l'` those of PAV under Laplace's rule.

    The worst case grows with the number of trials: compare it between sets of one size only. Nor is
    it 0 where nothing is disclosed: by Laplace's rule constant scores get tag A where the numbers
    of targets and non-targets differ.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        ``d_ece`` in bits, from 0 (nothing disclosed) to 1 / (2 ln 2) = 0.7213; ``l_w`` as a base-10
        logarithm; ``tag``, its category, 0.0 to 6.0 (see :func:`zebra_tag`; -1 if undefined),
        floating as loggers want it; ``d_ece_reversed``, the ``d_ece`` of the negated scores: an
        attacker may flip the sign. NaN with one warning where a class is missing.

    Example:
        >>> preds = torch.tensor([0.0, 1.0, 2.0, 3.0])
        >>> zebra_disclosure(preds, target=torch.tensor([0, 1, 0, 1]))
        {'d_ece': tensor(0.3607), 'l_w': tensor(0.3010), 'tag': tensor(1.),
         'd_ece_reversed': tensor(0.)}
    """
    return zebra_of_both_signs(
        count_by_score(preds, target, bandwidth, validate_args), result_dtype(preds)
    )


def zebra_of_both_signs(steps: StepsOfBothSigns, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return what :func:`zebra_disclosure` returns."""
    disclosure, disclosure_reversed = steps.disclosures
    l_w = steps.ascending.worst_evidence
    return {
        "d_ece": disclosure.to(dtype),
        "l_w": l_w.to(dtype),
        "tag": tag_number(l_w).to(dtype),  # an integer, but loggers want floating numbers
        "d_ece_reversed": disclosure_reversed.to(dtype),
    }


def zebra_tag(l_w: Tensor | float) -> str:
    """Return the category of a worst-case disclosure as a letter (table 1).

    Args:
        l_w: Base-10 logarithm of the strongest evidence, a number or a tensor of one element.

    Returns:
        ``"0"`` for 0, then ``"A"`` below 1, ``"B"`` 2, ``"C"`` 4, ``"D"`` 5, ``"E"`` 6, ``"F"``
        from 6; ``"?"`` for NaN.

    Example:
        >>> zebra_tag(0.3), zebra_tag(torch.tensor(3.979))
        ('A', 'C')
    """
    letter_index = int(tag_number(torch.as_tensor(l_w, dtype=torch.float64)))
    if letter_index < 0:
        return "?"
    return TAG_LETTERS[letter_index]


class ECEProfile(NamedTuple):
    """Empirical cross-entropy in bits of the prior, of calibrated scores and of the scores."""

    prior: Tensor
    minimum: Tensor
    actual: Tensor


def ece_profile(
    preds: Tensor, target: Tensor, prior_log_odds: Tensor, validate_args: bool = True
) -> ECEProfile:
    r"""Compute the empirical cross-entropy at any prior (eq. 11 and 12).

    .. math::
        \mathrm{ECE}(\pi) =
        \pi \langle -\log_2 \sigma(l + \operatorname{logit} \pi) \rangle_\mathrm{tar}
        + (1 - \pi) \langle -\log_2 \sigma(-l - \operatorname{logit} \pi) \rangle_\mathrm{non}

    Args:
        preds: Scores in any shape, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        prior_log_odds: Natural-log odds of the prior, any shape, finite.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        ``prior``, knowing the prior alone, ``minimum``, with scores calibrated by PAV, and
        ``actual``, with scores taken as natural-log likelihood ratios, in the shape of
        ``prior_log_odds``.

    Example:
        >>> scores, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> ece_profile(scores, target, torch.tensor([0.0]))
        ECEProfile(prior=tensor([1.]), minimum=tensor([0.5000]), actual=tensor([1.1476]))
    """
    check_floating("prior_log_odds", prior_log_odds)
    odds = widen(prior_log_odds.flatten())
    minimum = minimum_cross_entropy(
        count_by_score(preds, target, validate_args=validate_args).ascending, odds
    )
    scores = widen(preds.flatten())
    is_target = target.flatten().bool()
    # One prior at a time: all trials at all priors would not fit into memory.
    target_scores = scores[is_target]
    nontarget_scores = scores[~is_target]
    target_cost = torch.stack([softplus(-1 * (target_scores + odd)).mean() for odd in odds])
    nontarget_cost = torch.stack([softplus(nontarget_scores + odd).mean() for odd in odds])
    actual = entropy_of_costs(target_cost, nontarget_cost, odds)
    dtype = result_dtype(preds)
    shape = prior_log_odds.shape
    return ECEProfile(
        prior=prior_entropy(odds).to(dtype).reshape(shape),
        minimum=minimum.to(dtype).reshape(shape),
        actual=actual.to(dtype).reshape(shape),
    )


def calibration_distortion(
    preds: Tensor,
    target: Tensor,
    fit_preds: Tensor,
    fit_target: Tensor,
    calibration: str = "linear",
    validate_args: bool = True,
) -> Tensor:
    r"""Compute C_ECE, the D_ECE of scores calibrated on another run of the safeguard.

    Equations 15 and 16.

    Where each run of the safeguard draws another secret, a calibration fitted on one run may
    mislead on the next.

    Args:
        preds: Scores of the attacked run.
        target: Their labels, 1 (same speaker) or 0 (different).
        fit_preds: Scores of the run that the attacker fits the calibration on.
        fit_target: Their labels.
        calibration: ``"linear"``, the map ``a * s + b`` of least Cllr; or ``"isotonic"``, PAV under
            Laplace's rule, its posterior interpolated between training scores and constant outside.
        validate_args: Whether values are validated (NaN, labels); forces a GPU sync.

    Returns:
        Scalar in bits, at most 0.7213: 0 is good, below 0 the calibration misleads. NaN with one
            warning where a class
        is missing in either run.

    Example:
        >>> scores, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> calibration_distortion(scores, target, fit_preds=scores, fit_target=target)
        tensor(0.1069)
    """
    with collect_warnings():
        llr = transferred_llr(preds, target, fit_preds, fit_target, calibration, validate_args)
        bits = llr_disclosure(llr, target.flatten().bool())
        warn_undefined(
            "A calibration needs both kinds of trials in both runs, and numbers for scores.",
            bits.isnan(),
        )
    return bits.to(result_dtype(preds, fit_preds))


def speaker_disclosure(
    preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | Tensor, validate_args: bool = True
) -> SpeakerDisclosure:
    r"""Compute D_ECE and the strongest evidence of every speaker, calibrated on all trials.

    .. math::
        D_s = \frac{\langle Z(l) \rangle_{\mathrm{tar}, s} + \langle Z(-l) \rangle_{\mathrm{non},
        s}}{2 \ln 2}, \qquad D_\mathrm{ECE} = \sum_s \frac{1}{2 \ln 2} \left( \frac{T_s}{T} \langle
        Z(l) \rangle_{\mathrm{tar}, s} + \frac{N_s}{N} \langle Z(-l) \rangle_{\mathrm{non}, s}
        \right)

    with :math:`Z` of :func:`zebra_disclosure`, and averages over the :math:`T_s` target and
    :math:`N_s` non-target trials of speaker s. :math:`T` and :math:`N` are the sums of these
    numbers over all speakers. The log-likelihood ratios :math:`l` are those of PAV on all trials. A
    negative :math:`D_s` is evidence for other speakers.

    A non-target trial has two speakers, so there are three ways to count: ``enrolled`` counts it
    for the enrolment speaker, ``probed`` for the test speaker, and ``both`` for each of the two. In
    ``both`` :math:`N` is therefore twice the number of non-target trials. A target trial counts
    once in each.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Enrolment and test speaker of each trial, two integer tensors of that shape, or
            one of shape ``(2, ...)``.
        validate_args: Whether values are validated (NaN, labels, speakers); forces a GPU sync.

    Returns:
        ``SpeakerDisclosure(speakers, enrolled, probed, both)``. ``speakers`` ``(S,)`` are the
        labels in ascending order. Each of the other three has tensors ``(S,)``: ``of_targets`` and
        ``of_nontargets``, the two halves of :math:`D_s` in bits; ``targets`` and ``nontargets``,
        the numbers of trials; ``l_w``, the strongest evidence, a base-10 logarithm; ``d_ece``,
        :math:`D_s` in bits; ``contributions``, the terms of the sum over s. A speaker without such
        trials has NaN, and contributes 0. Where a class is missing, all are NaN, with one warning.

    Example:
        >>> preds, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> enrolled, probed = torch.tensor([4, 4, 7, 7]), torch.tensor([7, 4, 4, 7])
        >>> values = speaker_disclosure(preds, target, (enrolled, probed))
        >>> values.speakers, values.probed.d_ece, values.probed.contributions.sum()
        (tensor([4, 7]), tensor([0.0000, 0.7213]), tensor(0.3607))
    """
    check_trials(preds, target, validate_args)
    if isinstance(speakers, Tensor):
        speakers = tuple(speakers)
    check_speakers_of_trials(speakers, target, validate_args)
    labels_of_trials = torch.stack([side.flatten().long() for side in speakers])  # (2, P)
    labels, speaker_index = labels_of_trials.unique(return_inverse=True)
    scores = preds.flatten()
    is_target = target.flatten().bool()
    all_trials = collect_trial_scores(scores, is_target)
    disclosure = compute_disclosure_of_trials(all_trials, scores, is_target, speaker_index, labels)
    dtype = result_dtype(preds)
    sides: list[TrialSideDisclosure] = []
    for side in (disclosure.enrolled, disclosure.probed, disclosure.both):
        sides.append(TrialSideDisclosure(*[values.to(dtype) for values in side]))
    return SpeakerDisclosure(disclosure.speakers, *sides)
