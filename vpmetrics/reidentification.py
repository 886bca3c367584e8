"""Re-identification in a population: found among N people, and singled out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vpmetrics._engine.conditions import WITHOUT_SESSIONS, resolve_condition
from vpmetrics._engine.embedding_metric import EmbeddingMetric, IntervalEmbeddingMetric
from vpmetrics._engine.jackknife import add_intervals, group_speakers, jackknife_of
from vpmetrics._engine.population import (
    ACCUMULATED,
    EnrolmentProtocol,
    reidentification_rates,
    replicate_rates,
    singling_out_rates,
)
from vpmetrics._engine.scorers import Scoring, resolve_scoring
from vpmetrics._engine.utterances import EvaluationData
from vpmetrics._engine.validation import check_choice, check_sizes, check_whole, collect_warnings, reject_options


class _PopulationMetric(EmbeddingMetric):
    """What an attacker looks for whom with."""

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    def __init__(
        self,
        sizes: Sequence[int],
        smallest: int,
        utterances: int,
        accumulated: str,
        condition: str,
        attack: Any,
        scoring: Scoring,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sizes(sizes, smallest)
        check_whole("utterances", utterances, least=1)
        check_choice("accumulated", accumulated, ACCUMULATED)
        if attack is not None and not callable(getattr(attack, "attack", None)):
            raise TypeError(f"Expected `attack` to have a method `attack`, but got {type(attack).__name__}.")
        resolve_scoring(scoring)
        self.condition, self.length, self.accumulated = resolve_condition(condition).name, utterances, accumulated
        self.sizes, self.attack, self.scoring = tuple(sizes), attack, scoring

    def _value_over(self, data: EvaluationData, length: int) -> dict[str, Tensor]:
        # What is averaged is half of everybody's utterances, as this metric was told.
        return self._rates(data, length)

    def _value(self, data: EvaluationData) -> dict[str, Tensor]:
        return self._rates(data, self.length)

    def _rates(self, data: EvaluationData, length: int) -> dict[str, Tensor]:
        raise NotImplementedError

    def _protocol(self, length: int) -> EnrolmentProtocol:
        return EnrolmentProtocol(resolve_condition(self.condition), length, self.accumulated, self.attack)


class ReidentificationRate(_PopulationMetric, IntervalEmbeddingMetric):
    r"""How often the true speaker of a conversation comes first among N people (Vauquier et al., 2025).

    .. math::
        \pi_N = \sum_r h_r \binom{M - r}{N - 1} \Big/ \binom{M - 1}{N - 1}

    with :math:`h_r` the share of conversations whose own speaker comes r-th of the M references: the expectation over
    all galleries of N people, for every N from one pass. Where N exceeds M the value is extrapolated by a model of the
    ranks, as :func:`vpmetrics.functional.reidentification_rate` says. Its authors call this *linkability*;
    :class:`vpmetrics.Linkability` is another measure, that of Gomez-Barrero et al.

    ``update(original, protected, speakers, is_reference, utterances, sessions, groups)`` takes embeddings ``(B, D)``
    and integers ``(B,)``, all but the first three optional. With ``is_reference``, the utterances marked are the
    attacker's; without, half of everybody's are, dealt at random but always alike. A reference is the mean of what the
    attacker has of a speaker, a probe the mean of ``utterances`` others of one speaker and session; those left over
    are not used. (The authors scale every embedding to length 1 before they average: pass such to compare.)

    ``compute()`` returns a dictionary: ``rate_<N>`` and ``chance_<N>`` = 1/N for every size, and ``gallery``, the
    number M of references: where N is larger, the rate is extrapolated. With ``groups`` people are looked for within
    their group; rates are means over all probes, and M is that of the smallest group. NaN with one warning for fewer
    than two references, or where no probe has one.

    Args:
        sizes: Numbers of people N, the speaker included.
        utterances: How many utterances are averaged.
        accumulated: What is averaged over that many: ``"probes"``, ``"references"`` or ``"both"``. Otherwise a probe is
            one utterance, and a reference the mean of all that the attacker has of somebody.
        condition: ``"PP"``, protected references and probes; ``"OP"``, original references and protected probes;
            ``"OO"``, both original. With sessions also ``"within"`` and ``"across"``.
        attack: A fitted :mod:`vpmetrics.attacks` attack, or anything with its ``attack(original, protected)``: what the
            attacker does to utterances before they are averaged.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`, or any callable
            from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
        bandwidth: Width, in standard deviations of a probe's scores, over which two scores are compared softly, so that
            ranks have a gradient; None counts ranks.
        validate_args: Look for NaN and infinite embeddings; forces a GPU sync once per update.
        intervals: How often an interval is to hold the truth, such as 0.95: adds ``rate_<N>_low``, ``rate_<N>_high``
            from leaving speakers out one after the other; NaN where the rate is extrapolated. None calculates none.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = ReidentificationRate(sizes=(2, 3))
        >>> voices = torch.eye(3).repeat_interleave(2, 0) + 0.01 * torch.arange(6.0).unsqueeze(1)
        >>> metric.update(protected=voices, speakers=torch.tensor([4, 4, 7, 7, 9, 9]))
        >>> metric.compute()["rate_3"]
        tensor(1.)
    """

    def __init__(
        self,
        sizes: Sequence[int] = (20, 100, 1000, 20_000),
        utterances: int = 1,
        accumulated: str = "probes",
        condition: str = "PP",
        attack: Any = None,
        scoring: Scoring = "cosine",
        bandwidth: float | None = None,
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        given = {"bandwidth": bandwidth, "validate_args": validate_args, "intervals": intervals, **kwargs}
        super().__init__(sizes, 1, utterances, accumulated, condition, attack, scoring, **given)

    def _rates(self, data: EvaluationData, length: int) -> dict[str, Tensor]:
        protocol = self._protocol(length)
        values = reidentification_rates(data, protocol, self.sizes, self.scoring, self.bandwidth)
        if self.intervals is None:
            return values
        groups = group_speakers(data)
        parts = [(part, protocol, self.scoring) for part in data.by_group()]
        replicates = replicate_rates(parts, self.sizes, groups)
        return add_intervals(values, jackknife_of(replicates, groups), self.intervals)

    def plot(self, val: Any = None, ax: Any = None, label: str = "") -> tuple[Any, Any]:
        """Draw the rate over the number of people beside chance: a line, and dots where it is extrapolated.

        Several systems share axes when each draws on those of the one before.

        Args:
            val: A value of ``compute``, or a sequence of them over epochs, to draw instead.
            ax: Matplotlib axes to draw on; new ones when left out.
            label: Name of the system, for the legend.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        if val is not None:
            return super().plot(val, ax)
        from vpmetrics.plotting.identification import draw_population_rate, spread_sizes

        sizes = sorted({*spread_sizes(max(100, *self.sizes)), *self.sizes} - {1})
        with collect_warnings(), self._gathered():
            values = reidentification_rates(
                self._data(), self._protocol(self.length), sizes, self.scoring, self.bandwidth
            )
        curve = {n: float(values[f"rate_{n}"]) for n in sizes}
        return draw_population_rate(curve, float(values["gallery"]), ax, label)


class SinglingOut(_PopulationMetric):
    r"""How often an attacker's predicate fires on exactly one of N people (Vauquier et al., 2025).

    .. math::
        \pi_N = \Pr \{\exists!\, i : s(x_i, e) > t\}

    The attacker has the reference e of one of N speakers and a threshold t, calibrated so that on other conversations
    of these speakers it lets one in N pass. That the predicate then fires on exactly one of their conversations x is
    what singles a person out, be it the right one or not. Knowing nothing succeeds with probability exp(-1) = 0.368, or
    somewhat less where few conversations calibrate: 0.27 for one of each speaker, 0.30 for two, 0.35 for nine.

    ``update`` takes what :class:`ReidentificationRate` takes, and an attacker has the same utterances. The others are
    averaged in disjoint groups of ``utterances``, of which every speaker needs two: each is tested in turn, while
    others calibrate. ``compute()`` returns a dictionary: ``singling_out_<N>``, and ``singling_out_<N>_error``, the
    standard error of drawing sets of N speakers: 0 where that is everybody. NaN with one warning for sizes beyond the
    number of speakers. ``VoicePrivacy(sizes=...)`` tells the same after the strongest of several attacks.

    Args:
        sizes: Numbers of people N, the reference's speaker included.
        utterances: How many utterances are averaged to a conversation.
        condition: ``"PP"``, protected references and conversations; ``"OP"``, original references and protected
            conversations; ``"OO"``, both original.
        attack: As in :class:`ReidentificationRate`.
        calibration: Conversations of a speaker that calibrate, at most.
        draws: How many sets to draw for each reference and size, at least.
        scoring: As in :class:`ReidentificationRate`.
        validate_args: Look for NaN and infinite embeddings; forces a GPU sync once per update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> metric = SinglingOut(sizes=(3,))
        >>> voices = torch.eye(3).repeat_interleave(4, 0) + 0.01 * torch.arange(12.0).unsqueeze(1)
        >>> metric.update(protected=voices, speakers=torch.arange(12) // 4)
        >>> metric.compute()
        {'singling_out_3': tensor(1.), 'singling_out_3_error': tensor(0.)}
    """

    def __init__(
        self,
        sizes: Sequence[int] = (20, 100, 1000),
        utterances: int = 1,
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
            "intervals": "without a speaker other sets of people would be drawn; the error of drawing stands beside it",
        }
        reject_options(self, kwargs, reasons)
        check_choice("condition", condition, WITHOUT_SESSIONS)
        check_whole("calibration", calibration, least=1)
        check_whole("draws", draws, least=2)
        given = {"validate_args": validate_args, **kwargs}
        super().__init__(sizes, 2, utterances, "probes", condition, attack, scoring, **given)
        self.calibration, self.draws = calibration, draws

    def _rates(self, data: EvaluationData, length: int) -> dict[str, Tensor]:
        protocol = self._protocol(length)
        return singling_out_rates(data, protocol, self.sizes, self.scoring, self.calibration, self.draws)

    def plot(self, val: Any = None, ax: Any = None, label: str = "") -> tuple[Any, Any]:
        """Draw the share singled out over the number of people, with twice its error, beside chance.

        Args:
            val: A value of ``compute`` to draw, or a sequence of them over epochs; ``compute()`` when left out.
            ax: Matplotlib axes to draw on; new ones when left out.
            label: Name of the system, for the legend.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        value = self.compute() if val is None else val
        if not isinstance(value, dict):
            return super().plot(value, ax)
        from vpmetrics.plotting.identification import draw_singling_out

        curve = {n: (float(value[f"singling_out_{n}"]), float(value[f"singling_out_{n}_error"])) for n in self.sizes}
        return draw_singling_out(curve, ax, label)
