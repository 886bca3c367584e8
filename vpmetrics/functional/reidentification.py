r"""Re-identification in a population, singling out, and conversations of several utterances.

Vauquier et al., "Legally validated evaluation framework for voice anonymization", Interspeech 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vpmetrics._identification.population import (
    average_members,
    form_conversations,
    rates_of_histogram,
)
from vpmetrics._identification.singling_out import (
    form_population,
    isolation_rates_and_standard_errors,
)
from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.validation import (
    check_embeddings,
    check_histogram_shape,
    check_integers,
    check_same_device,
    check_shape,
    check_tensor,
    check_utterances,
    check_whole_number,
    check_whole_numbers,
)
from vpmetrics._utterances.canonical_order import count_within, order_rows
from vpmetrics._utterances.utterances import count_values


def reidentification_rate(histogram: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
    r"""Compute how often the true speaker comes first among N people.

    It follows from the ranks among all M references.

    .. math::
        \pi_N = \sum_{r=1}^{M} h_r \binom{M - r}{N - 1} \Big/ \binom{M - 1}{N - 1}

    where :math:`h_r` is the share of probes whose own speaker has rank r: the exact expectation
    over all draws of N - 1 others, ties included. Vauquier et al. call it *linkability*;
    :func:`linkability` here is another measure, that of Gomez-Barrero et al.

    For N > M the rate is extrapolated by a model, in which the probabilities of other people to
    score higher than the true speaker of a probe are beta distributed:

    .. math::
        \pi_N = \frac{B(\alpha, \beta + N - 1)}{B(\alpha, \beta)}, \qquad \alpha \le 1

    :func:`fit_beta_binomial` keeps the share at rank 1, so the curve has no step at M. An alpha
    above 1 contradicts a concave ROC curve: it is replaced by 1, so that the rate falls no faster
    than chance. Extrapolated from 400 to 8,000 simulated speakers the rate was within a factor of
    1.7, rather too high than too low; from 40 it is rough. If every probe has rank 1 the rate stays
    at 1, which is a bound and no estimate.

    Args:
        histogram: Counts or shares of the ranks 1 ... M, shape ``(M,)``, as :func:`rank_histogram`
            returns them.
        sizes: Numbers of people N, the true speaker included; 1 at least.

    Returns:
        Dict of ``rate_<N>`` and ``chance_<N>`` = 1/N for every size, and ``gallery``, the number M:
        where N is larger, the rate is extrapolated. NaN for a histogram without inputs, or of fewer
        than two references; for N > M also of two.

    Example:
        >>> values = reidentification_rate(torch.tensor([6.0, 2.0, 0.0, 0.0]), sizes=(2, 4, 100))
        >>> {
        ...     name: round(value.item(), 4)
        ...     for name, value in values.items()
        ...     if name.startswith("rate")
        ... }
        {'rate_2': 0.9167, 'rate_4': 0.75, 'rate_100': 0.0833}
    """
    check_histogram_shape(histogram)
    if histogram.ndim != 1:
        got = tuple(histogram.shape)
        raise ValueError(
            f"Expected `histogram` to have shape (M,), one entry per rank, but got {got}."
        )
    check_whole_numbers(sizes, smallest=1)
    return rates_of_histogram(histogram, sizes)


def singling_out(
    references: Tensor,
    reference_speakers: Tensor,
    conversations: Tensor,
    speakers: Tensor,
    sizes: Sequence[int],
    is_tested: Tensor | None = None,
    calibration: int = 9,
    scoring: Scoring = "cosine",
    draws: int = 20,
) -> dict[str, Tensor]:
    r"""Compute how often an attacker's predicate fires on exactly one of N people.

    Vauquier et al., 2025.

    .. math::
        \pi_N = \Pr \{\exists!\, i : s(x_i, e) > t\}

    The attacker has a reference e of one of N speakers, and one conversation x of each of them. The
    threshold t is calibrated on other conversations of the same speakers: if M of them are of the
    reference's own speaker, it lies midway between the M-th and (M+1)-th highest score, so that the
    predicate fires on about one of them in N. It may fire on any speaker. Without information it
    still isolates someone with probability exp(-1) = 0.368; with few calibrating conversations
    less: 0.27 with one per speaker, 0.30 with two, 0.35 with nine. Sets of N speakers are disjoint
    blocks of random shuffles, with a fixed seed, that all references share.

    Args:
        references: Floating tensor of shape ``(R, D)``, each row a predicate of its own.
        reference_speakers: Integer tensor of shape ``(R,)``; speakers with fewer than two
            conversations are left out.
        conversations: Floating tensor of shape ``(K, D)``, mean embeddings of the utterances of
            each conversation.
        speakers: Integer tensor of shape ``(K,)``; those with a single conversation are left out.
        sizes: Numbers of people N, the reference's speaker included; 2 at least.
        is_tested: Boolean tensor of shape ``(K,)`` that marks the one conversation of each speaker
            that is tested, while all others calibrate; without it every conversation is tested in
            turn, while the next ones calibrate.
        calibration: Maximum number of conversations per speaker used to calibrate, without
            ``is_tested``.
        scoring: As in :func:`rank_histogram`.
        draws: How many sets to draw for each reference and size, at least; 2 or more.

    Returns:
        Dict of ``singling_out_<N>`` and ``singling_out_<N>_error``, the standard error of drawing
        the sets, for every size; NaN with one warning for sizes that exceed the number of speakers.

    Example:
        >>> embeddings, people = torch.eye(4).repeat_interleave(2, 0), torch.arange(4)
        >>> singling_out(torch.eye(4), people, embeddings, people.repeat_interleave(2), sizes=(4,))
        {'singling_out_4': tensor(1.), 'singling_out_4_error': tensor(0.)}
    """
    check_whole_numbers(sizes, smallest=2)
    check_utterances("references", references, "reference_speakers", reference_speakers)
    check_utterances("conversations", conversations, "speakers", speakers)
    check_same_device("references", references, "conversations", conversations)
    check_whole_number("calibration", calibration, least=1)
    check_whole_number("draws", draws, least=2)
    number_in_speaker = _places_of_rows(speakers, conversations)
    folds = None
    if is_tested is not None:
        check_tensor("is_tested", is_tested)
        if is_tested.dtype != torch.bool:
            raise TypeError(f"Expected `is_tested` to be boolean, but got {is_tested.dtype}.")
        check_shape("is_tested", is_tested, tuple(speakers.shape), "the shape of `speakers`")
        names, index = speakers.unique(return_inverse=True)
        counts = count_values(index[is_tested], len(names))
        if bool((counts != 1).any()):
            wrong = counts[counts != 1][:5].tolist()
            raise ValueError(
                f"Expected `is_tested` to mark one conversation of every speaker, but got {wrong}"
                " of some."
            )
        number_in_speaker = torch.where(is_tested, -1, number_in_speaker)
        calibration = len(speakers)
        folds = 1
    population = form_population(
        references,
        reference_speakers,
        conversations,
        speakers,
        number_in_speaker,
        calibration,
        folds,
    )
    return isolation_rates_and_standard_errors(population, sizes, scoring, draws)


class AveragedUtterances(NamedTuple):
    """Averaged utterances, as ``update`` of every embedding metric takes them."""

    original: Tensor | None  # (C, D)
    protected: Tensor | None  # (C, D)
    speakers: Tensor  # (C,)
    sessions: Tensor | None  # (C,)


def conversations(
    original: Tensor | None,
    protected: Tensor | None,
    speakers: Tensor,
    conversation: int,
    sessions: Tensor | None = None,
) -> AveragedUtterances:
    """Average utterances of a speaker and session.

    Metrics of the averages measure an attacker with that much speech.

    Args:
        original: Floating tensor of shape ``(B, D)``, or None.
        protected: Floating tensor of shape ``(B, D)``, or None; row i is the protected version of
            row i.
        speakers: Integer tensor of shape ``(B,)``.
        conversation: How many utterances to average; the remainder is dropped.
        sessions: Integer tensor of shape ``(B,)``: only utterances of one session are averaged.

    Returns:
        ``AveragedUtterances(original, protected, speakers, sessions)``, row i of both sides from
        the same utterances. They are grouped at random, but always the same for the same
        utterances, whatever the order of rows.

    Example:
        >>> original = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
        >>> conversations(original, None, torch.tensor([4, 4, 9]), conversation=2).original
        tensor([[2., 0.]])
    """
    check_embeddings(original, protected, speakers)
    check_whole_number("conversation", conversation, least=1)
    columns = [speakers]
    if sessions is not None:
        check_integers("sessions", sessions)
        check_shape("sessions", sessions, tuple(speakers.shape), "the shape of `speakers`")
        columns.append(sessions)
    group = torch.unique(torch.stack(columns), dim=1, return_inverse=True)[1]
    sides = [side for side in (original, protected) if side is not None]
    members = form_conversations(group, _places_of_rows(group, *sides), conversation)
    if original is not None:
        original = average_members(original, members)
    if protected is not None:
        protected = average_members(protected, members)
    first_member = members[:, 0]
    if sessions is not None:
        sessions = sessions[first_member]
    return AveragedUtterances(original, protected, speakers[first_member], sessions)


def _places_of_rows(groups: Tensor, *sides: Tensor) -> Tensor:
    """Return the place 0, 1, ... of each row in its group, ``(N,)``, in canonical order of rows."""
    order = order_rows(*sides)
    return torch.empty_like(order).scatter(0, order, count_within(groups[order]))
