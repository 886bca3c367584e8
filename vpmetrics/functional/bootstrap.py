r"""Intervals by drawing speakers anew: slow, exact, and so what quicker intervals are checked against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._checks import (
    check_choice,
    check_choices,
    check_confidence,
    check_speakers_of_trials,
    check_trials,
    check_whole,
    warn_once,
    warn_undefined,
)
from vpmetrics._precision import result_dtype, widen
from vpmetrics._scalars import scalar
from vpmetrics._scores.intervals import reach_of_unseen, students_t
from vpmetrics._scores.weighted import MEASURES, sort_trials, values_under
from vpmetrics._trials.conditions import ALWAYS
from vpmetrics._trials.drawn import DrawnCondition, inputs_of_speakers
from vpmetrics._trials.matrices import SIMILARITIES
from vpmetrics._trials.scorers import Scoring
from vpmetrics._trials.utterances import Sides, pack, sides_of
from vpmetrics.functional.rank import rank_disclosure

_OF_MATRICES = {"deid": ("OO", "OP"), "gvd": ("OO", "PP")}
_OF_INPUTS = ("mean_d", "alid")
EMBEDDING_MEASURES = (
    *_OF_MATRICES,
    *(f"{name.lower()}_{measure}" for name in ALWAYS for measure in (*MEASURES, *_OF_INPUTS)),
)


class Bootstrapped(NamedTuple):
    """A value, both ends of its interval, and the value of every replicate ``(R,)``."""

    value: Tensor
    low: Tensor
    high: Tensor
    replicates: Tensor


def bootstrap(
    preds: Tensor,
    target: Tensor,
    speakers: Sequence[Tensor],
    measures: Sequence[str] = tuple(MEASURES),
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    validate_args: bool = True,
) -> dict[str, Bootstrapped]:
    r"""Intervals that honour that trials share speakers: speakers are drawn anew, with replacement, never trials.

    A speaker drawn :math:`w` times weighs :math:`w`: in every replicate a target trial of speaker i weighs
    :math:`w_i`, a non-target trial of speakers i and j weighs :math:`w_i w_j`, so copies of one speaker never meet each
    other. Scores are sorted once; every replicate is calibrated anew. With the mean :math:`\bar\theta` and the standard
    deviation :math:`\sigma` of the replicates the interval of a value :math:`\theta` is

    .. math:: \theta - (\bar\theta - \theta) \pm t_{S - 1}\, \sigma \sqrt{S / (S - 1)}

    with Student's t for S speakers: a calibration fitted to what it is measured on makes replicates exceed the value by
    as much as the value exceeds the truth, and S speakers vary less about their own mean than about the true one. Where
    all replicates are the same end of a range, the interval reaches as far as people could move it of whom S speakers
    have none, with a chance of one minus ``confidence``.

    Args:
        preds: Scores in any shape and on any scale, higher = more alike; for ``cllr``, log-likelihood ratios.
        target: 1 (same speaker) or 0 (different), of the same shape.
        speakers: Who speaks on the enrolment side and on the probe side: two tensors of integers of the same shape.
        measures: Any of ``d_ece``, ``d_ece_reversed``, ``eer``, ``raw_eer``, ``min_cllr``, ``cllr``, ``linkability``;
            the bins of the last stay those of all trials.
        replicates: How many times to draw.
        confidence: How often an interval is to hold the truth.
        seed: Of the draws; the labels of speakers and the order of trials do not show.
        validate_args: Look at the values, too (NaN, labels, speakers); forces a GPU sync.

    Returns:
        ``value``, ``low``, ``high`` and ``replicates`` ``(R,)`` of each measure. Replicates without one class of trials
        are NaN and left out; where the trials are so themselves all is NaN, with one warning.

    Example:
        >>> speakers = torch.arange(60).repeat_interleave(60) % 12, torch.arange(60).repeat(60) % 12
        >>> target = speakers[0] == speakers[1]
        >>> preds = torch.randn(3600, generator=torch.Generator().manual_seed(0)) + target
        >>> value, low, high, _ = bootstrap(preds, target, speakers, measures=["eer"], replicates=200)["eer"]
        >>> value, low, high
        (tensor(0.2938), tensor(0.2590), tensor(0.3343))
    """
    check_trials(preds, target, validate_args)
    check_speakers_of_trials(speakers, target, validate_args)
    check_choices("measures", measures, tuple(MEASURES))
    check_whole("replicates", replicates, least=2)
    check_whole("seed", seed, least=0)
    check_confidence("confidence", confidence)
    trials = sort_trials(preds.detach().flatten(), target.flatten().bool(), [side.flatten() for side in speakers])
    count = len(trials.speakers)
    values = values_under(trials, _draw(count, replicates, seed).to(preds.device), measures)
    dtype = result_dtype(preds)
    return {name: _interval(values[name], name, count, confidence, dtype) for name in measures}


def bootstrap_embeddings(
    original: Tensor,
    protected: Tensor,
    speakers: Tensor,
    measures: Sequence[str] = ("deid", "gvd", "op_d_ece", "op_mean_d", "op_alid"),
    replicates: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    scoring: Scoring = "cosine",
    similarity: str = "geometric",
    validate_args: bool = True,
) -> dict[str, Bootstrapped]:
    r"""Intervals of embeddings by drawing speakers anew, as :func:`bootstrap` does; slow, for checking quicker ones.

    For ``deid`` and ``gvd`` every replicate calibrates each condition anew, under Laplace's rule, and averages its own
    matrices: a speaker drawn :math:`w` times is :math:`w` rows and columns. For ``mean_d`` and ``alid`` the inputs are
    those of the speakers drawn; the references, and the slopes of the latter, stay. Every score is kept: for up to some
    thousand utterances.

    Args:
        original: Embeddings ``(N, D)`` of the original speech.
        protected: Embeddings ``(N, D)`` of the protected speech, row i that of row i of ``original``.
        speakers: Who speaks, ``(N,)``; any integers.
        measures: ``deid``, ``gvd``, and after ``oo_``, ``op_`` or ``pp_`` any measure of :func:`bootstrap`, ``mean_d``
            or ``alid``.
        replicates: How many times to draw.
        confidence: How often an interval is to hold the truth.
        seed: Of the draws; the labels of speakers and the order of rows do not show.
        scoring: How embeddings are compared, see :class:`vpmetrics.VoicePrivacy`.
        similarity: ``"geometric"`` or ``"sigmoid"``, see :func:`voice_similarity_matrix`.
        validate_args: Look for NaN and infinite embeddings; forces a GPU sync once.

    Returns:
        What :func:`bootstrap` returns, by the names of ``measures``.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(8).repeat_interleave(5)
        >>> original = torch.randn(8, 16, generator=draw)[speakers] + torch.randn(40, 16, generator=draw)
        >>> protected = 0.5 * original + torch.randn(40, 16, generator=draw)
        >>> value, low, high, _ = bootstrap_embeddings(original, protected, speakers, ["deid"], 100)["deid"]
        >>> value, low, high
        (tensor(0.3973), tensor(0.3207), tensor(0.5292))
    """
    check_choices("measures", measures, EMBEDDING_MEASURES)
    check_choice("similarity", similarity, SIMILARITIES)
    check_whole("replicates", replicates, least=2)
    check_confidence("confidence", confidence)
    check_whole("seed", seed, least=0)
    sides = sides_of(pack(original, protected, speakers, values=validate_args))
    count, dtype = len(sides.voices), result_dtype(original, protected)
    with warn_once():
        if count > 1:
            values = _values_of_sides(sides, measures, seed, replicates, scoring, similarity)
        else:
            warn_undefined("Drawing speakers needs two of them.")
            values = dict.fromkeys(measures, widen(original.new_full((1 + replicates,), torch.nan)))
    return {name: _interval(values[name], name, count, confidence, dtype) for name in measures}


def _values_of_sides(
    sides: Sides, measures: Sequence[str], seed: int, replicates: int, scoring: Scoring, similarity: str
) -> dict[str, Tensor]:
    """Every measure of all speakers and of those of each replicate, ``(1 + R,)``."""
    needed = {key[:2].upper() for key in measures if key[2] == "_"}
    similar = {name for key, pair in _OF_MATRICES.items() if key in measures for name in pair}
    known = {name: DrawnCondition(sides, name, scoring) for name in ALWAYS if name in needed | similar}
    # Weights are those of places in an order that labels do not show in.
    order = next(iter(known.values())).trials.speakers
    weights = widen(_draw(len(order), replicates, seed).to(order.device))[:, order.argsort()]
    dominance = {name: known[name].dominance(weights, similarity) for name in similar}
    values = {}
    if "deid" in measures:
        values["deid"] = 1 - dominance["OP"] / dominance["OO"]
    if "gvd" in measures:
        values["gvd"] = 10 * (dominance["PP"] / dominance["OO"]).log10()
    for name, condition in known.items():
        keys = [key[3:] for key in measures if key[:3] == f"{name.lower()}_"]
        found = condition.measures(keys, weights)
        if not set(keys) <= set(found):
            histograms, bits, inputs = inputs_of_speakers(sides, name, scoring)
            found["mean_d"] = rank_disclosure(weights @ histograms)["mean_d"]
            found["alid"] = (weights @ bits) / (weights @ inputs)
        values |= {f"{name.lower()}_{key}": value for key, value in found.items()}
    return values


def _draw(speakers: int, replicates: int, seed: int) -> Tensor:
    """All speakers once, then how often each is drawn, ``(1 + R, S)``; on the host: every device draws the same."""
    chosen = torch.randint(max(1, speakers), (replicates, speakers), generator=torch.Generator().manual_seed(seed))
    drawn = torch.zeros(replicates, speakers).scatter_add(1, chosen, torch.ones(replicates, speakers))
    return torch.cat([torch.ones(1, speakers), drawn])


def _interval(values: Tensor, name: str, speakers: int, confidence: float, dtype: torch.dtype) -> Bootstrapped:
    value, replicates = values[0], values[1:]
    known = replicates[~replicates.isnan()]
    low = high = torch.full_like(value, torch.nan)
    if len(known) > 1:
        reach = students_t(confidence, speakers - 1) * known.std() * math.sqrt(speakers / (speakers - 1))
        centre = 2 * value - known.mean()
        bounds = scalar(name).range_among(speakers)
        unseen = reach_of_unseen(value, reach, speakers, confidence, *bounds)
        ends = centre - reach - unseen, centre + reach + unseen
        low, high = (end.clamp(*bounds) for end in ends)
    return Bootstrapped(value.to(dtype), low.to(dtype), high.to(dtype), replicates.to(dtype))
