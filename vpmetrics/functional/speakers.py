"""Disclosure of every single speaker, by the calibration that all trials have together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vpmetrics._engine.condition_scores import score_trials
from vpmetrics._engine.precision import result_dtype
from vpmetrics._engine.speakers import SideDisclosure, SpeakerDisclosure, disclose_trial_speakers
from vpmetrics._engine.validation import check_integers, check_same_device, check_shape, check_trials


def speaker_disclosure(
    preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | Tensor, validate_args: bool = True
) -> SpeakerDisclosure:
    r"""D_ECE and worst case of every speaker, which recombine to those of all: who is protected worst.

    .. math::
        D_s = \frac{\langle Z(l) \rangle_{\mathrm{tar}, s} + \langle Z(-l) \rangle_{\mathrm{non}, s}}{2 \ln 2}, \qquad
        D_\mathrm{ECE} = \sum_s \frac{1}{2 \ln 2} \left( \frac{T_s}{T} \langle Z(l) \rangle_{\mathrm{tar}, s}
        + \frac{N_s}{N} \langle Z(-l) \rangle_{\mathrm{non}, s} \right)

    with the averages over the :math:`T_s` target and :math:`N_s` non-target trials of a speaker, and the log-likelihood
    ratios :math:`l` that PAV on all trials gives. So the calibration is that of an attacker who does not know whom they
    listen to, and a speaker's value can be below 0: evidence that points to others. The largest of many values is too
    large by what is noise in them.

    A non-target trial has two speakers. ``enrolled`` counts it for that of the reference, ``probed`` for that of the
    probe, and ``both`` for either, so that :math:`N` there is twice the number of these trials.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Who is enrolled and who is probed in each trial, two integer tensors of that shape, or one of shape
            ``(2, ...)``.
        validate_args: Look at the values, too (NaN, labels, whose they are); forces a GPU sync.

    Returns:
        ``SpeakerDisclosure(speakers (S,), enrolled, probed, both)``, speakers ascending, and for each side
        ``of_targets`` and ``of_nontargets``, the two halves of :math:`D_s` in bits, ``targets`` and ``nontargets``, the
        numbers of trials, and ``l_w``, the worst case, ``(S,)`` each; with the properties ``d_ece``, :math:`D_s`, and
        ``contributions``, the terms of the sum. NaN where a speaker has no such trials, and everywhere with one warning
        where a class is missing.

    Example:
        >>> preds, target = torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 0, 1])
        >>> enrolled, probed = torch.tensor([4, 4, 7, 7]), torch.tensor([7, 4, 4, 7])
        >>> values = speaker_disclosure(preds, target, (enrolled, probed))
        >>> values.speakers, values.probed.d_ece, values.probed.contributions.sum()
        (tensor([4, 7]), tensor([0.0000, 0.7213]), tensor(0.3607))
    """
    check_trials(preds, target, validate_args)
    places, names = _check_speakers(preds, target, speakers, validate_args)
    is_target = target.flatten().bool()
    scores = score_trials(preds.flatten(), is_target)
    found = disclose_trial_speakers(scores, preds.flatten(), is_target, places, names)
    dtype = result_dtype(preds)
    return SpeakerDisclosure(
        found.speakers, *(SideDisclosure(*(part.to(dtype) for part in side)) for side in found[1:])
    )


def _check_speakers(
    preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | Tensor, values: bool
) -> tuple[Tensor, Tensor]:
    """The places of both speakers of every trial among all, ``(2, P)``, and the numbers they go by."""
    if not isinstance(speakers, Sequence | Tensor) or len(speakers) != 2:
        raise TypeError(f"Expected `speakers` to be two tensors, enrolled and probed, but got {speakers!r}.")
    for side in speakers:
        check_integers("speakers", side)
        check_shape("speakers", side, tuple(preds.shape), "the shape of `preds`")
        check_same_device("preds", preds, "speakers", side)
    both = torch.stack([side.flatten().to(torch.int64) for side in speakers])
    odd = (both[0] == both[1]) != target.flatten().bool()
    if values and bool(odd.any()):
        raise ValueError(f"Expected `target` to be 1 exactly where both speakers are the same, but {odd.sum()} differ.")
    names, places = both.unique(return_inverse=True)
    return places, names
