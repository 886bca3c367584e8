"""Re-identification of conversations of several utterances in a population of N people.

Vauquier et al., "Legally validated evaluation framework for voice anonymization", Interspeech 2025.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._identification.beta_binomial import fit_beta_binomial
from vpmetrics._identification.identification import (
    IdentificationReplicates,
    identify,
    replicate_ranks,
)
from vpmetrics._identification.references import IdentificationTrials, add_distractors, form_trials
from vpmetrics._scores.jackknife import JackknifeGroups
from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import warn_undefined
from vpmetrics._utterances.canonical_order import count_within, lexsort_columns
from vpmetrics._utterances.conditions import Condition, SideName
from vpmetrics._utterances.utterances import (
    EvaluationData,
    Utterances,
    combination_index_and_first_rows,
)

if TYPE_CHECKING:
    from vpmetrics.attacks.fusion import FusedAttacker
    from vpmetrics.attacks.results import FusedResult


class ConversationProtocol(NamedTuple):
    """How conversations are formed and compared.

    A probe averages ``utterances`` of a speaker and session, a reference all that the attacker has
    of a speaker. ``attack`` maps utterances before they are averaged.
    """

    condition: Condition
    scoring: Scoring = "cosine"
    utterances: int = 1
    attack: Any = None
    distractors: Tensor | None = None  # (G, D), enrolled speakers whom no conversation is of


def form_conversations(groups: Tensor, places: Tensor, length: int) -> Tensor:
    """Return rows of conversations of ``length`` utterances each, ``(C, length)``.

    Incomplete ones are dropped.
    """
    order = lexsort_columns(places, groups)
    _, counts = torch.unique_consecutive(groups[order], return_counts=True)
    num_used = counts // length * length  # (groups,)
    is_used = places[order] < num_used.repeat_interleave(counts)
    return order[is_used].view(-1, length)


def average_members(embeddings: Tensor, members: Tensor) -> Tensor:
    """Return the mean of the rows of each conversation, ``(C, D)``, for members ``(C, L)``."""
    if members.shape[1] == 1:
        return embeddings[members[:, 0]]
    # Up to 4M entries at once, 32 MB in double precision.
    entries_per_conversation = members.shape[1] * embeddings.shape[1]
    conversations_at_once = max(1, 2**22 // max(1, entries_per_conversation))
    means = [embeddings[:0]]
    for rows in members.split(conversations_at_once):
        # Deviations from the first row, so that the mean of equal rows is that row to the last bit.
        first_member = widen(embeddings[rows[:, 0]])  # (c, D)
        all_members = widen(embeddings[rows])  # (c, L, D)
        mean_deviation = (all_members - first_member.unsqueeze(1)).mean(dim=1)
        means.append((first_member + mean_deviation).to(embeddings.dtype))
    return torch.cat(means)


def form_enrolment_and_conversations(
    data: EvaluationData, protocol: ConversationProtocol
) -> tuple[Utterances, Utterances]:
    """Return utterances of known speakers, and conversations of unknown ones.

    The attacker knows the speakers of the first.
    """
    condition = protocol.condition
    enrolment, test = data.sides(condition, references_per="utterance")
    if enrolment.is_reference is None:
        # Sides without a common recording: half of every speaker's recordings are enrolled, the
        # others tested.
        is_known = _place_recordings(enrolment, test) % 2 == 0
        is_enrolment_known, is_test_known = is_known.split([len(enrolment), len(test)])
        enrolment = enrolment.take(is_enrolment_known)
        test = test.take(~is_test_known)
    group, _ = combination_index_and_first_rows(test, "sessions")
    members = form_conversations(group, count_within(group), protocol.utterances)
    enrolment = add_distractors(enrolment, protocol.distractors)
    enrolment = _map_side(enrolment, condition.enrolment, protocol.attack)
    means = average_members(_map_side(test, condition.test, protocol.attack).embeddings, members)
    return enrolment, replace(test.take(members[:, 0]), embeddings=means)


def form_population_trials(
    data: EvaluationData, protocol: ConversationProtocol
) -> IdentificationTrials:
    """Return conversations, each to be identified among one reference per known speaker."""
    enrolment, test = form_enrolment_and_conversations(data, protocol)
    target_sessions = protocol.condition.target_sessions
    return form_trials(enrolment, test, target_sessions=target_sessions, processes=data.processes)


def _place_recordings(enrolment: Utterances, test: Utterances) -> Tensor:
    """Return the place of each row's recording, ``(A + B,)``, enrolment rows before tests.

    Recordings of one speaker, session and partition are counted from 0. Rows of one recording, as
    its original and its protected version, have one place.
    """
    ids = torch.cat([enrolment.ids, test.ids])
    recordings, recording_of_row = ids.unique(return_inverse=True)
    num_recordings = len(recordings)

    labels_by_recording: list[Tensor] = []
    for name in ("speaker_index", "sessions", "groups", "is_reference"):
        if getattr(test, name) is None:
            continue
        labels_by_row = torch.cat([getattr(enrolment, name), getattr(test, name)]).long()
        labels = _least_by_recording(labels_by_row, recording_of_row, num_recordings)
        labels_by_recording.append(labels)
    label_table = torch.stack(labels_by_recording)
    _, series_of_recording = label_table.unique(dim=1, return_inverse=True)

    # Tests come first, in whose order versions of one recording are adjacent; then enrolment.
    num_rows = len(recording_of_row)
    row = torch.arange(num_rows, device=recording_of_row.device)
    rank_of_row = (row - len(enrolment)) % num_rows
    order = _least_by_recording(rank_of_row, recording_of_row, num_recordings).argsort()
    place_in_order = count_within(series_of_recording[order])
    place_of_recording = torch.empty_like(order).scatter(0, order, place_in_order)
    return place_of_recording[recording_of_row]


def _least_by_recording(values: Tensor, recording_of_row: Tensor, num_recordings: int) -> Tensor:
    """Return the least value of the rows of each recording, ``(num_recordings,)``."""
    least = values.new_empty(num_recordings)
    return least.scatter_reduce(0, recording_of_row, values, "amin", include_self=False)


def _map_side(side: Utterances, name: SideName, attack: Any) -> Utterances:
    """Return the side called ``name`` with embeddings mapped by the attack, if there is one."""
    if attack is None:
        return side
    if name == "original":
        embeddings, _ = attack.attack(side.embeddings, None)
    else:
        _, embeddings = attack.attack(None, side.embeddings)
    return replace(side, embeddings=embeddings)


def reidentification_rates(
    parts: Iterable[tuple[EvaluationData, ConversationProtocol]],
    sizes: Sequence[int],
    is_extrapolated: bool = True,
) -> dict[str, Tensor]:
    """Return how often the speaker of a conversation comes first among N people.

    All are of one part of the data.
    """
    rates_by_partition = []
    num_inputs = []
    for data, protocol in parts:
        trials = form_population_trials(data, protocol)
        histogram = identify(trials, protocol.scoring, has_bits=False).histogram
        rates = rates_of_histogram(histogram, sizes)
        if not is_extrapolated:  # NaN for more people than there are references
            extrapolated_keys = [f"rate_{size}" for size in sizes if size > len(histogram)]
            for key in extrapolated_keys:
                rates[key] = torch.full_like(rates[key], torch.nan)
        rates_by_partition.append(rates)
        num_inputs.append(histogram.detach().sum())
    return average_rates(rates_by_partition, torch.stack(num_inputs))


def average_rates(
    rates_by_partition: Sequence[dict[str, Tensor]], weights: Tensor
) -> dict[str, Tensor]:
    """Return the mean of each rate over the partitions that have a value.

    ``weights`` ``(g,)``: one per partition. Of ``gallery`` it is the least, of a standard error the
    error of the mean.
    """
    if len(rates_by_partition) == 1:
        return rates_by_partition[0]
    means = {}
    for key in rates_by_partition[0]:
        values = torch.stack([rates[key] for rates in rates_by_partition])
        if key == "gallery":  # beyond it, one of the partitions at least is extrapolated
            smallest = values.nan_to_num(torch.inf).amin()
            means[key] = torch.where(smallest.isinf(), torch.nan, smallest)
            continue
        share = torch.where(values.isnan(), 0, weights.to(values))
        weighted = share / share.sum() * values.nan_to_num(0)
        if key.endswith("_error"):
            means[key] = weighted.square().sum().sqrt()
        else:
            means[key] = weighted.sum()
    return means


def rates_of_histogram(histogram: Tensor, sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return how often an input's own speaker comes first among N people.

    Args:
        histogram: ``(M,)``, the number of inputs at each rank among all M references.
        sizes: Values of N. Rates of more than M people are extrapolated.

    Returns:
        For every N ``rate_<N>``, and ``chance_<N>``, which is 1 / N; and ``gallery``, which is M.
        All are NaN, with a warning, for fewer than two references, for no inputs, and where the
        histogram holds NaN. With two references extrapolated rates are NaN, with a warning.
    """
    num_references = len(histogram)
    counts = widen(histogram)
    rank_shares = counts / counts.sum()
    gallery = rank_shares.new_full((), num_references)
    missing = ""
    if num_references < 2:
        missing = f"two references at least, but there are {num_references}"
    elif bool(rank_shares.isnan().any()):
        missing = "inputs, and none that are NaN"
    if missing:
        warn_undefined(f"Re-identification needs {missing}.")
        gallery = torch.full_like(gallery, torch.nan)
        rate_of_size = dict.fromkeys(sizes, gallery)
    else:
        rate_of_size = _rates_of_sizes(rank_shares, sizes)

    values: dict[str, Tensor] = {}
    for size in sizes:
        values[f"rate_{size}"] = rate_of_size[size]
    for size in sizes:
        values[f"chance_{size}"] = torch.where(gallery.isnan(), gallery, 1 / size)
    values["gallery"] = gallery
    dtype = result_dtype(histogram)
    return {key: value.to(dtype) for key, value in values.items()}


def _rates_of_sizes(rank_shares: Tensor, sizes: Sequence[int]) -> dict[int, Tensor]:
    """Return the rank-1 rate of each size, extrapolated where there are fewer references."""
    num_references = len(rank_shares)
    sizes_within = [size for size in sizes if size <= num_references]
    sizes_beyond = [size for size in sizes if size > num_references]
    if num_references == 2 and sizes_beyond:
        warn_undefined(
            "Rates beyond the references need three of them at least, but there are two."
        )
    rates_within = rank_one_rates(rank_shares, sizes_within)
    rate_of_size = dict(zip(sizes_within, rates_within, strict=True))
    if sizes_beyond:
        rates_beyond = _extrapolate_rates(rank_shares, sizes_beyond)
        rate_of_size.update(zip(sizes_beyond, rates_beyond, strict=True))
    return rate_of_size


def rank_one_rates(rank_shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the rank-1 rate of each gallery size, ``(..., sizes)``.

    The share of inputs per rank is ``(..., M)``.
    """
    num_references = rank_shares.shape[-1]
    rank = torch.arange(1, num_references, dtype=rank_shares.dtype, device=rank_shares.device)
    num_others_left = num_references - rank  # (M - 1,), of which the next is above
    num_drawn = rank_shares.new_tensor(sizes).unsqueeze(1) - 1  # beside the own speaker, (sizes, 1)
    # The chance that no reference above is drawn. That of a rank follows from the one before by a
    # factor, so no binomial coefficient is formed.
    log_factors = torch.log1p(-(num_drawn / num_others_left).clamp(max=1))
    chances = log_factors.cumsum(dim=1).exp()
    return rank_shares[..., :1] + rank_shares[..., 1:] @ chances.mT


def _extrapolate_rates(rank_shares: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the rank-1 rates among more people than there are references.

    They follow from a beta-binomial fit to the ranks.
    """
    num_references = len(rank_shares)
    is_certain = rank_shares[0] >= 1
    fit = fit_beta_binomial(rank_shares)
    rank_one_share = torch.where(is_certain, 0.5, fit.probabilities[0])
    # A fit with an alpha above 1 is replaced by alpha 1, with the same share of the first rank.
    keeps_fit = (fit.alpha <= 1) & ~is_certain
    alpha = torch.where(keeps_fit, fit.alpha, 1.0)
    beta_of_alpha_one = rank_one_share * (num_references - 1) / (1 - rank_one_share)
    beta = torch.where(keeps_fit, fit.beta, beta_of_alpha_one)
    num_drawn = torch.tensor(sizes, dtype=rank_shares.dtype, device=rank_shares.device) - 1
    log_ratio_of_sizes = _log_gamma_ratio(beta + num_drawn, alpha)
    log_ratio_of_references = _log_gamma_ratio(beta + num_references - 1, alpha)
    log_fall = log_ratio_of_sizes - log_ratio_of_references
    rates = torch.where(is_certain, 1.0, rank_one_share * (-log_fall).exp())
    if num_references > 2:
        return rates
    return torch.full_like(rates, torch.nan)


def _log_gamma_ratio(y: Tensor, a: Tensor) -> Tensor:
    """Return the logarithm of Gamma(y + a) / Gamma(y) by Stirling's series.

    The difference of two ``lgamma`` would cancel.
    """
    near = 1 / y
    far = 1 / (y + a)
    series = (far - near) / 12 - (far**3 - near**3) / 360 + (far**5 - near**5) / 1260
    return (y - 0.5) * torch.log1p(a / y) + a * (torch.log(y + a) - 1) + series


def replicate_rates(
    parts: Iterable[tuple[EvaluationData, ConversationProtocol]],
    sizes: Sequence[int],
    groups: JackknifeGroups,
) -> dict[str, Tensor]:
    """Return the rates of all speakers, then without each jackknife group, ``(1 + G,)``.

    A rate is the mean over the parts of the data, weighted by their inputs. Parts with fewer than
    two references have no rate and do not count. Sizes beyond the references of a part are left
    out: their rates are extrapolated, and the jackknife would miss the error of that model.
    """
    trials_of_parts: list[tuple[IdentificationTrials, Scoring]] = []
    for data, protocol in parts:
        trials = form_population_trials(data, protocol)
        if trials.num_references > 1:
            trials_of_parts.append((trials, protocol.scoring))
    fewest_references = min((trials.num_references for trials, _ in trials_of_parts), default=0)
    sizes_within = [size for size in sizes if size <= fewest_references]
    if not sizes_within:
        return {}
    weighted_rates: list[Tensor] = []
    weights: list[Tensor] = []
    for trials, scoring in trials_of_parts:
        replicates = replicate_ranks(trials, scoring, groups)
        num_inputs = replicates.histograms.sum(1)  # (1 + G,)
        rates = _rank_one_rates_of_replicates(replicates, num_inputs, sizes_within)
        # The rate of a replicate without inputs is NaN, and must not count.
        weighted_rates.append(torch.where(num_inputs > 0, num_inputs * rates, 0))
        weights.append(num_inputs)
    means = torch.stack(weighted_rates).sum(0) / torch.stack(weights).sum(0)
    return {f"rate_{size}": mean for size, mean in zip(sizes_within, means, strict=True)}


def _rank_one_rates_of_replicates(
    replicates: IdentificationReplicates, num_inputs: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return the rank-1 rate of each size in each replicate, ``(sizes, 1 + G)``."""
    histograms = replicates.histograms
    rates = histograms.new_zeros(len(sizes), len(histograms))
    # Replicates with the same number of references left have ranks of the same range.
    for num_left in replicates.references.unique().long().tolist():
        is_chosen = replicates.references == num_left
        rank_shares = histograms[is_chosen, :num_left] / num_inputs[is_chosen, None]
        # Where fewer people are left than a size asks for, all of them are the gallery.
        sizes_left = [min(size, num_left) for size in sizes]
        rates[:, is_chosen] = rank_one_rates(rank_shares, sizes_left).T
    return rates


@dataclass(frozen=True, eq=False)
class PopulationRates:
    """How often speakers of a condition are identified, by gallery size and conversation length."""

    data: EvaluationData
    protocol: ConversationProtocol
    attacks: FusedAttacker | None = None
    strongest: FusedResult | None = None

    def __call__(self, sizes: Sequence[int], utterances: int = 1) -> dict[str, Tensor]:
        """Return what :class:`vpmetrics.ReidentificationRate` returns."""
        protocol = self.protocol._replace(utterances=utterances)
        data_and_protocols = [(partition_data, protocol) for partition_data in self.data.by_group()]
        return reidentification_rates(data_and_protocols, sizes)

    def after_strongest_attack(
        self, sizes: Sequence[int], utterances: int = 1
    ) -> dict[str, Tensor]:
        """Return the rates of the fused attacker; NaN for more people than a fold has."""
        # People are searched among their fold, since the attack has seen all others.
        attacked_folds = self._attacked_folds(utterances)
        if attacked_folds:
            return reidentification_rates(attacked_folds, sizes, is_extrapolated=False)
        if self.attacks:
            keys = [*(f"rate_{size}" for size in sizes), "gallery"]
            return dict.fromkeys(keys, torch.tensor(torch.nan))
        return {}

    def _attacked_folds(
        self, utterances: int = 1
    ) -> list[tuple[EvaluationData, ConversationProtocol]]:
        if self.attacks is None or self.strongest is None:
            return []
        # A fold compares what an attack has made of its own speakers, so distractors are left out.
        protocol = self.protocol._replace(utterances=utterances, distractors=None)
        return [
            (fold.data, protocol._replace(scoring=fold.score))
            for fold in self.attacks.fused_folds(protocol.condition, self.strongest)
        ]

    def replicates(self, sizes: Sequence[int], groups: JackknifeGroups) -> dict[str, Tensor]:
        """Return the rates of all speakers and then without each group, ``(1 + G,)``."""
        data_and_protocols = [
            (partition_data, self.protocol) for partition_data in self.data.by_group()
        ]
        plain = replicate_rates(data_and_protocols, sizes, groups)
        attacked = replicate_rates(self._attacked_folds(), sizes, groups)
        return plain | {f"{key}_strongest": value for key, value in attacked.items()}

    def median_num_test_utterances(self) -> int:
        """Return the median number of test utterances per speaker, rounded down.

        Where sessions are known, per speaker and session.
        """
        _, test = form_enrolment_and_conversations(self.data, self.protocol)
        counts = torch.bincount(combination_index_and_first_rows(test, "sessions")[0])
        if len(counts) == 0:
            return 0
        return int(counts.median())
