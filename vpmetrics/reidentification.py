"""Re-identification and singling out in a population of N people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._identification.population import (
    ConversationProtocol,
    reidentification_rates,
    replicate_rates,
)
from vpmetrics._identification.singling_out import singling_out_rates
from vpmetrics._scores.jackknife import add_intervals, group_speakers, make_jackknife
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._util.validation import (
    check_choice,
    check_distractors,
    check_whole_number,
    check_whole_numbers,
    collect_warnings,
    reject_options,
)
from vpmetrics._utterances.conditions import WITHOUT_SESSIONS, look_up_condition
from vpmetrics._utterances.utterances import EvaluationData


class ReidentificationRate(EmbeddingMetric):
    r"""Compute how often the true speaker of a conversation comes first among N people.

    Vauquier et al., 2025.

    .. math::
        \pi_N = \sum_r h_r \binom{M - r}{N - 1} \Big/ \binom{M - 1}{N - 1}

    with :math:`h_r` the share of conversations whose own speaker has rank r among the M references:
    the expectation over all galleries of N people. Where N exceeds M it is extrapolated by a model
    of the ranks, see :func:`vpmetrics.functional.reidentification_rate`. Its authors call this
    *linkability*; :class:`vpmetrics.Linkability` is another measure, that of Gomez-Barrero et al.

    As input to ``forward`` and ``update`` the metric accepts embeddings ``original (B, D)``,
    ``protected (B, D)``, ``speakers (B,)`` and optionally ``is_reference``, ``utterances``,
    ``sessions``, ``groups`` ``(B,)``. Marked utterances are the attacker's; without
    ``is_reference``, half of every speaker's are, chosen by their values. A reference is the mean
    of what the attacker has of a speaker, a probe the mean of ``conversation`` others of one
    speaker and session; the remainder is not used. (The authors average embeddings of unit length.)

    As output of ``compute`` the metric returns a dictionary: ``rate_<N>`` and ``chance_<N>`` = 1/N
    for every size, and ``gallery``, the number M of references. With ``groups`` people are searched
    within their group; rates are means over all probes, and M is that of the smallest group. NaN
    with one warning for fewer than two references, or where no probe has one.

    Args:
        sizes: Numbers of people N, the speaker included.
        conversation: How many utterances of one speaker and session a probe averages.
        condition: ``"PP"``, protected references and probes; ``"OP"``, original references and
            protected probes; ``"OO"``, both original. With sessions also ``"within"`` and
            ``"across"``.
        attack: A fitted :mod:`vpmetrics.attacks` attack, or any object with ``attack(original,
            protected)``; it maps utterances before they are averaged.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`,
            or any callable from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher =
            more alike.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        intervals: Confidence level such as 0.95; adds ``rate_<N>_low``, ``rate_<N>_high`` of the
            leave-one-speaker-out jackknife; NaN where the rate is extrapolated.
        distractors: Embeddings ``(G, D)`` of further enrolled speakers, a row each, whom no probe
            is of. They widen the gallery, and an attack maps them as it maps references.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = ReidentificationRate(sizes=(2, 3))
        >>> embeddings = torch.eye(3).repeat_interleave(2, 0) + 0.01 * torch.arange(6.0).unsqueeze(
        ...     1
        ... )
        >>> metric.update(protected=embeddings, speakers=torch.tensor([4, 4, 7, 7, 9, 9]))
        >>> metric.compute()["rate_3"]
        tensor(1.)
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        sizes: Sequence[int] = (20, 100, 1000, 20_000),
        conversation: int = 1,
        condition: str = "PP",
        attack: Any = None,
        scoring: Scoring = "cosine",
        validate_args: bool = True,
        intervals: float | None = None,
        distractors: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        reject_options(
            self,
            kwargs,
            {"bandwidth": "somebody is found or not; `SimilarityRankDisclosure` takes it"},
        )
        super().__init__(validate_args=validate_args, intervals=intervals, **kwargs)
        check_whole_numbers(sizes, smallest=1)
        check_whole_number("conversation", conversation, least=1)
        self.sizes = tuple(sizes)
        self.conversation = conversation
        self.condition = look_up_condition(condition).name
        self.attack = _check_attack(attack)
        self.scoring = _check_scoring(scoring)
        self.distractors = check_distractors(distractors)

    def _search(self, data: EvaluationData) -> list[tuple[EvaluationData, ConversationProtocol]]:
        protocol = ConversationProtocol(
            look_up_condition(self.condition),
            self.scoring,
            self.conversation,
            self.attack,
            self.distractors,
        )
        return [(data_of_group, protocol) for data_of_group in data.by_group()]

    def _compute_value(self, data: EvaluationData) -> dict[str, Tensor]:
        searches = self._search(data)
        values = reidentification_rates(searches, self.sizes)
        if self.intervals is None:
            return values
        groups = group_speakers(data)
        replicates = replicate_rates(searches, self.sizes, groups)
        return add_intervals(values, make_jackknife(replicates, groups), self.intervals)

    def plot(self, val: Any = None, ax: Any = None, label: str = "") -> tuple[Any, Any]:
        """Draw the rate and its chance level over the number of people.

        A line, and dots where it is extrapolated.

        ``val``, a value of ``compute`` or a sequence of them over epochs, is drawn instead. Several
        systems may share the axes ``ax``, each with its ``label``.
        """
        if val is not None:
            return super().plot(val, ax)
        from vpmetrics.plotting.identification_plots import (
            draw_population_rate,
            spread_population_sizes,
        )

        sizes = sorted({*spread_population_sizes(max(100, *self.sizes)), *self.sizes} - {1})
        with collect_warnings(), self._gather_states():
            values = reidentification_rates(self._search(self._collect_data()), sizes)
        curve = {n: float(values[f"rate_{n}"]) for n in sizes}
        return draw_population_rate(curve, float(values["gallery"]), ax, label)


class SinglingOut(EmbeddingMetric):
    r"""Compute how often an attacker's predicate fires on exactly one of N people.

    Vauquier et al., 2025.

    .. math::
        \pi_N = \Pr \{\exists!\, i : s(x_i, e) > t\}

    The attacker has a reference e of one of N speakers, and one conversation :math:`x_i` of every
    speaker. About one in N of their other conversations scores above the threshold t; see
    :func:`vpmetrics.functional.singling_out`. The predicate may isolate any person. Without
    information it still isolates someone with probability exp(-1) = 0.368; with few calibrating
    conversations less: 0.27 with one per speaker, 0.30 with two, 0.35 with nine.

    As input to ``forward`` and ``update`` the metric accepts what :class:`ReidentificationRate`
    accepts, and an attacker has the same utterances. A conversation is the mean of ``conversation``
    of a speaker's other utterances; every speaker needs two. All are tested, one after another,
    while others calibrate. As output of ``compute`` it returns a dictionary: ``singling_out_<N>``,
    and ``singling_out_<N>_error``, the standard error of drawing sets of N speakers, 0 where N is
    the number of speakers. NaN with one warning for sizes above the number of speakers. Only
    references of speakers who are tested form predicates, so enrolled speakers without tests would
    change nothing.

    Args:
        sizes: Numbers of people N, the reference's speaker included.
        conversation: How many utterances are averaged to a conversation.
        condition: ``"PP"``, protected references and conversations; ``"OP"``, original references
            and protected conversations; ``"OO"``, both original.
        attack: As in :class:`ReidentificationRate`.
        calibration: Maximum number of conversations per speaker used to calibrate.
        draws: How many sets to draw for each reference and size, at least.
        scoring: As in :class:`ReidentificationRate`.
        validate_args: As in :class:`ReidentificationRate`.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SinglingOut(sizes=(3,))
        >>> embeddings = torch.eye(3).repeat_interleave(4, 0) + 0.01 * torch.arange(12.0).unsqueeze(
        ...     1
        ... )
        >>> metric.update(protected=embeddings, speakers=torch.arange(12) // 4)
        >>> metric.compute()
        {'singling_out_3': tensor(1.), 'singling_out_3_error': tensor(0.)}
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        sizes: Sequence[int] = (20, 100, 1000),
        conversation: int = 1,
        condition: str = "PP",
        attack: Any = None,
        calibration: int = 9,
        draws: int = 20,
        scoring: Scoring = "cosine",
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        reasons = {
            "bandwidth": "singling out either succeeds or does not",
            "intervals": (
                "without a speaker other sets of people would be drawn; use the error of drawing"
            ),
        }
        reject_options(self, kwargs, reasons)
        check_choice("condition", condition, WITHOUT_SESSIONS)
        check_whole_number("calibration", calibration, least=1)
        check_whole_number("draws", draws, least=2)
        super().__init__(validate_args=validate_args, **kwargs)
        check_whole_numbers(sizes, smallest=2)
        check_whole_number("conversation", conversation, least=1)
        self.sizes = tuple(sizes)
        self.conversation = conversation
        self.condition = condition
        self.attack = _check_attack(attack)
        self.scoring = _check_scoring(scoring)
        self.calibration = calibration
        self.draws = draws

    def _compute_value(self, data: EvaluationData) -> dict[str, Tensor]:
        protocol = ConversationProtocol(
            look_up_condition(self.condition), self.scoring, self.conversation, self.attack
        )
        return singling_out_rates(data, protocol, self.sizes, self.calibration, self.draws)

    def plot(self, val: Any = None, ax: Any = None, label: str = "") -> tuple[Any, Any]:
        """Draw the share singled out and its chance level over the number of people.

        With twice its error.

        ``val``: a value of ``compute``, or a sequence of them over epochs. Several systems may
        share the axes ``ax``, each with its ``label``.
        """
        value = self.compute() if val is None else val
        if not isinstance(value, dict):
            return super().plot(value, ax)
        from vpmetrics.plotting.identification_plots import draw_singling_out

        curve = {
            n: (float(value[f"singling_out_{n}"]), float(value[f"singling_out_{n}_error"]))
            for n in self.sizes
        }
        return draw_singling_out(curve, ax, label)


def _check_attack(attack: Any) -> Any:
    """Return a fitted attack, or None; raise for anything else."""
    if attack is not None and not callable(getattr(attack, "attack", None)):
        raise TypeError(
            f"Expected `attack` to have a method `attack`, but got {type(attack).__name__}."
        )
    return attack


def _check_scoring(scoring: Scoring) -> Scoring:
    """Return how embeddings are compared; raise for what is no such way."""
    resolve_scoring(scoring)
    return scoring
