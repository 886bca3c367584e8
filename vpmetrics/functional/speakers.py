"""Disclosure of every single speaker, by the calibration that all trials have together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._engine.condition_scores import score_trials
from vpmetrics._engine.precision import result_dtype
from vpmetrics._engine.speaker_disclosure import SideDisclosure, SpeakerDisclosure, disclose_trial_speakers
from vpmetrics._engine.validation import check_speakers_of_trials, check_trials


def speaker_disclosure(
    preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | Tensor, validate_args: bool = True
) -> SpeakerDisclosure:
    r"""Compute D_ECE and the strongest evidence of every speaker, calibrated on all trials.

    .. math::
        D_s = \frac{\langle Z(l) \rangle_{\mathrm{tar}, s} + \langle Z(-l) \rangle_{\mathrm{non}, s}}{2 \ln 2}, \qquad
        D_\mathrm{ECE} = \sum_s \frac{1}{2 \ln 2} \left( \frac{T_s}{T} \langle Z(l) \rangle_{\mathrm{tar}, s}
        + \frac{N_s}{N} \langle Z(-l) \rangle_{\mathrm{non}, s} \right)

    with averages over the :math:`T_s` target and :math:`N_s` non-target trials of a speaker, and log-likelihood ratios
    :math:`l` from PAV on all trials, as an attacker has them who does not know the speaker. A negative value is
    evidence for other speakers. The largest of many noisy values is too large.

    A non-target trial has two speakers. ``enrolled`` counts it for the enrolment speaker, ``probed`` for the test
    speaker, and ``both`` for either, so that :math:`N` there is twice the number of these trials.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Enrolment and test speaker of each trial, two integer tensors of that shape, or one of shape
            ``(2, ...)``.
        validate_args: Whether values are validated, too (NaN, labels, speakers); forces a GPU sync.

    Returns:
        ``SpeakerDisclosure(speakers (S,), enrolled, probed, both)``, speakers ascending, and for each side
        ``of_targets`` and ``of_nontargets``, the two halves of :math:`D_s` in bits, ``targets`` and ``nontargets``, the
        numbers of trials, and ``l_w``, the strongest evidence, ``(S,)`` each; with the properties ``d_ece``,
        :math:`D_s`, and ``contributions``, the terms of the sum. NaN where a speaker has no such trials, and everywhere
        with one warning where a class is missing.

    Example:
        >>> preds, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> enrolled, probed = torch.tensor([4, 4, 7, 7]), torch.tensor([7, 4, 4, 7])
        >>> values = speaker_disclosure(preds, target, (enrolled, probed))
        >>> values.speakers, values.probed.d_ece, values.probed.contributions.sum()
        (tensor([4, 7]), tensor([0.0000, 0.7213]), tensor(0.3607))
    """
    check_trials(preds, target, validate_args)
    check_speakers_of_trials(tuple(speakers) if isinstance(speakers, Tensor) else speakers, target, validate_args)
    names, places = torch.stack([side.flatten().long() for side in speakers]).unique(return_inverse=True)
    is_target, dtype = target.flatten().bool(), result_dtype(preds)
    scores = score_trials(preds.flatten(), is_target)
    disclosed = disclose_trial_speakers(scores, preds.flatten(), is_target, places, names)
    sides = (SideDisclosure(*(column.to(dtype) for column in side)) for side in disclosed[1:])
    return SpeakerDisclosure(disclosed.speakers, *sides)
