"""Everything at once: all scalars of all conditions, each condition scored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vpmetrics._checks import check_choice, check_flag, check_sizes, check_slope, unsaid, warn_once
from vpmetrics._names import selection
from vpmetrics._precision import result_dtype
from vpmetrics._report import (
    ConditionReport,
    PrivacyReport,
    Settings,
    average_scores,
    join_conditions,
    rates_of,
    report_condition,
    with_transfer,
)
from vpmetrics._scalars import TAG, key_of, names_with_ends, origins_of, scalar, scalars_of
from vpmetrics._trials import shares
from vpmetrics._trials.bounds import error_bounds
from vpmetrics._trials.conditions import ALWAYS, CONDITIONS
from vpmetrics._trials.folds import is_bounded, is_linear
from vpmetrics._trials.galleries import conversations_of_sides
from vpmetrics._trials.matrices import SIMILARITIES
from vpmetrics._trials.rows import Layouts
from vpmetrics._trials.scorers import Scoring, resolve_scoring
from vpmetrics._trials.utterances import Sides
from vpmetrics.functional.rank import MODELS
from vpmetrics.strongest import AttackedMetric, Attacks


class VoicePrivacy(AttackedMetric):
    r"""All that the other metrics say, from one copy of the embeddings, each condition scored once.

    ``update(original, protected, speakers)`` takes embeddings ``(B, D)`` and integers ``(B,)``. ``compute()`` returns
    a flat dictionary of scalars: ``deid`` and ``gvd``; for each condition ``oo``, ``op``, ``pp`` the metrics of its
    scores (``op_d_ece``, ``op_d_ece_reversed``, ``op_l_w``, ``op_tag``, ``op_min_cllr``, ``op_cllr``, ``op_eer`` on the
    ROC's hull, ``op_raw_eer``, ``op_min_dcf``, ``op_linkability``), of its matrix (``op_d_diag``, ``op_d_diag_log``)
    and of identification among all speakers (``op_max_d``, ``op_mean_d`` and its level of chance ``op_mean_d_chance``,
    ``op_id_rate``, ``op_rank_spread``; ``op_alid``, ``op_pdr``, ``op_ndr``, ``op_lid_pos``, ``op_lid_neg``,
    ``op_lid_max``, ``op_link_rate``), and of who is protected worst (``op_worst_speaker_d_ece`` and whose it is,
    ``op_worst_speaker``, a place among all speakers in ascending order; ``op_speaker_d_ece_spread``,
    ``op_worst_speaker_mean_d``, ``op_worst_speaker_alid``: see :func:`vpmetrics.functional.speaker_disclosure`, of the
    speakers looked for); the normalised relatives ``d_ece_op_oo``, ``cllr_op_oo``, ``g_d_ece``, ``g_cllr`` (Noé et al.,
    2022, eq. 17 to 20). :meth:`report` adds what figures need.

    All of these are a cosine's, a weak attacker's. Beside them stand those of the strongest of several attackers, who
    learn from other speakers (:class:`StrongestAttack`): ``op_d_ece_strongest``, ``op_eer_strongest``,
    ``op_strongest`` (its number in :attr:`attack_names`), ``op_d_ece_chance``; the same of ``pp``.

    With ``sessions`` the conditions ``within`` and ``across`` join, with all keys: protected speech of one draw of the
    anonymiser's secret, which should link, and of different draws, which should not; and ``op_c_ece``, what a
    calibration learnt on half of the sessions discloses in the other half. With ``groups`` only pairs of one group are
    trials, attacks are also fitted group by group, and :meth:`report` has all scalars of each. ``original`` is what
    attackers have of known speakers, ``protected`` what they want to attribute: for an attacker who protects their
    own recordings, pass those as ``original``.

    Up to a few million trials every value is exact. Beyond, scores share 65,536 bins and :meth:`error_bound` says by
    how much. The original side is scored anew only when it has changed since the last time.

    Args:
        similarity: ``"geometric"`` (2022) or ``"sigmoid"`` (2020), see :class:`VoiceSimilarityMatrix`.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`, or any callable
            from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher = more alike.
        rank_model: ``"empirical"`` or ``"beta_binomial"``, see :class:`SimilarityRankDisclosure`.
        slope: Slope of the local information; cross-fitted when left out, see :class:`LocalInformationDisclosure`.
        sizes: Numbers of people to look for somebody among; adds ``op_rate_<N>``, ``op_singling_out_<N>`` with its
            error and ``op_gallery``, and the same of the other conditions, of single utterances and cosines: see
            :class:`ReidentificationRate` and :class:`SinglingOut`. Beside them stand ``op_rate_<N>_strongest``,
            after the attack that was chosen for each fold of speakers: among the ``op_gallery_strongest`` people of a
            fold, and extrapolated beyond; and ``op_singling_out_<N>_strongest`` with its error, in fewer folds where
            these are too small: what most folds chose is then fitted on fewer people, and finds less where they are
            but dozens. NaN for more than half of all people.
        metrics: Names of the scalars ``compute`` returns, if not all: what these do not need is not calculated.
        intervals: How often an interval is to hold the truth, such as 0.95: adds ``<key>_low`` and ``<key>_high``, for
            all but extremes (``l_w``, ``tag``, ``lid_max``), single speakers and who is singled out, from leaving
            speakers out one after the other, as trials that share a speaker are not independent; NaN for rates that are
            extrapolated. None calculates none.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None is exact. Meant for
            batches: every score is kept, whatever their number.
        validate_args: Look for NaN and infinite embeddings; forces a GPU sync per update. Without, ``update`` never
            looks at the device, and ``compute`` at most 12 times whatever the size; attacks some ten times each.
        attacks: ``"standard"``, the battery of :mod:`vpmetrics.attacks`; a sequence of attacks; None tries none, and is
            several times as fast on small sets. With ``bandwidth`` none is tried.
        enrolment: None takes every utterance for a reference and a probe. With ``is_reference``, ``"utterance"``
            compares probes with each of the chosen references, ``"speaker"`` with their mean per speaker.
        gather: With False processes never gather embeddings: each keeps those of some speakers, and blocks of them pass
            from one process to the next, so that memory per process falls as there are more. Without ``intervals`` and
            ``sizes``, and with attacks that are linear or say by ``most_rows`` how many rows they learn from at most.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from vpmetrics.attacks import Plain, RidgeToOriginal
        >>> from vpmetrics.data import demo_voices
        >>> voices = demo_voices()
        >>> metric = VoicePrivacy(attacks=[Plain(), RidgeToOriginal()])
        >>> metric.update(voices.original, voices.protected["B2"], voices.speakers)
        >>> values = metric.compute()
        >>> [round(values[key].item(), 2) for key in ("deid", "op_d_ece", "op_d_ece_strongest")]
        [0.37, 0.38, 0.61]
    """

    def __init__(
        self,
        similarity: str = "geometric",
        scoring: Scoring = "cosine",
        rank_model: str = "empirical",
        slope: float | None = None,
        bandwidth: float | None = None,
        validate_args: bool = True,
        attacks: Attacks = "standard",
        enrolment: str | None = None,
        sizes: Sequence[int] | None = None,
        metrics: Sequence[str] | None = None,
        intervals: float | None = None,
        gather: bool = True,
        **kwargs: Any,
    ) -> None:
        # The surrogate is for batches, and attackers need more than a batch.
        if bandwidth is not None and attacks not in (None, "standard"):
            raise ValueError("Expected `attacks` only without `bandwidth`: attackers need more than a batch.")
        tried = attacks if bandwidth is None else None
        super().__init__(tried, bandwidth=bandwidth, validate_args=validate_args, intervals=intervals, **kwargs)
        check_choice("enrolment", enrolment, (None, "utterance", "speaker"))
        if sizes is not None:
            check_sizes(sizes, smallest=2)
        self.enrolment, self.sizes = enrolment, tuple(sizes or ())
        known = scalars_of(tuple(CONDITIONS), self.attacks is not None, sessions=True, sizes=self.sizes)
        self.metrics = None if metrics is None else selection("metrics", metrics, known)
        check_choice("similarity", similarity, SIMILARITIES)
        check_choice("rank_model", rank_model, MODELS)
        check_slope(slope)
        self.similarity, self.scoring, self.rank_model, self.slope = similarity, scoring, rank_model, slope
        resolve_scoring(scoring)
        self._baseline: tuple[Settings, tuple[Tensor, ...], ConditionReport] | None = None
        self._latest: tuple[Any, list[Tensor], PrivacyReport] | None = None
        check_flag("gather", gather)
        if not gather:
            self._refuse_apart()
        self.gather = gather

    def _refuse_apart(self) -> None:
        """Raise where something is asked for that one process cannot say without the rows of all others."""
        given = {"bandwidth": self.bandwidth, "intervals": self.intervals, "sizes": self.sizes or None}
        for name, value in {**given, "dist_sync_fn": self.dist_sync_fn}.items():
            if value is not None:
                raise ValueError(f"Expected no `{name}` with gather=False, but got {value!r}.")
        origins = self._settings().origins
        attacked = origins is None or any(family == "attack" for _, family in origins)
        for attack in (self.attacks or ()) if attacked else ():
            if not (is_linear(attack) or is_bounded(attack)):
                raise ValueError(
                    "Expected `attacks` to be linear, or to say by `most_rows` how many rows they learn from, with "
                    f"gather=False, but got {type(attack).__name__}."
                )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but reports, which are soon made again."""
        return {**super().__getstate__(), "_baseline": None, "_latest": None}

    def _refuse_batch(self, is_reference: Tensor | None) -> None:
        if self.enrolment is not None and is_reference is None:
            raise ValueError(f"Expected `is_reference` with enrolment={self.enrolment!r}, but got None.")

    def report(self) -> PrivacyReport:
        """All scalars of ``compute``, with the conditions they come from, for all groups together and for each.

        Over all processes, as ``compute``.
        """
        with warn_once(), self._gathered():
            sides = self._sides()
            groups = {group: self._report(sides.of_group(group), cached=False) for group in sides.groups()}
            return self._report_of_state(sides)._replace(groups=groups)

    def compute(self) -> dict[str, Tensor]:
        """All scalars over all utterances so far."""
        with warn_once():
            return self._scalars(self._report_of_state(self._sides()))

    def reset(self, observed: bool = False) -> None:
        """Forget all utterances; with ``observed``, also what attackers have watched."""
        super().reset(observed)
        self._latest = None

    def plot(self, val: Any = None, ax: Any = None, label: str = "system") -> tuple[Any, Any]:
        """Draw de-identification against gain of voice distinctiveness.

        Several systems share one figure when each draws on the axes the one before returned.

        Args:
            val: A value of ``compute``, or a dictionary of such by the name of the system; ``compute()`` when left out.
                A sequence of values is the path of a training, from epoch to epoch.
            ax: Matplotlib axes to draw on; new ones when left out.
            label: Name of the system, where ``val`` is one value.

        Returns:
            Figure and axes; neither shown nor saved.
        """
        from vpmetrics._plot.systems import draw_path, draw_trade_off

        val = self.compute() if val is None else val
        if not isinstance(val, Mapping):
            rows = [(float(value["deid"]), float(value["gvd"])) for value in val]
            return draw_path([deid for deid, _ in rows], [gvd for _, gvd in rows], range(len(rows)), ax)
        systems = {label: val} if "deid" in val else val
        return draw_trade_off(list(systems.items()), ax)

    def error_bound(self) -> dict[str, Tensor]:
        """By how much binning may have changed each value at most.

        0 where every score counts for itself, as in ranks and local information always. What follows from matrices of
        binned scores, linkability and attacks are missing then: no bound on these is known.
        """
        report = self.report()
        bounds = {
            key_of(name, key): bound
            for name, condition in report.conditions.items()
            for key, bound in error_bounds(condition.scores).items()
        }
        exact = all(condition.scores.separated is None for condition in report.conditions.values())
        for key, value in report.scalars.items():
            known = scalar(key)
            counted = (exact and known.unit is not TAG) or known.family in ("rank", "local")
            if counted and not bool(value.isnan()):
                bounds.setdefault(key, torch.zeros_like(value))
        return bounds

    def _value_over(self, sides: Sides, length: int) -> dict[str, Tensor]:
        return self._scalars(self._report(conversations_of_sides(sides, length), cached=False))

    def _value_of_sides(self, sides: Sides) -> dict[str, Tensor]:
        return self._scalars(self._report(sides))

    def _scalars(self, report: PrivacyReport) -> dict[str, Tensor]:
        # Conditions of sessions are missing where there are none.
        wanted = report.scalars if self.metrics is None else names_with_ends(self.metrics)
        return {name: report.scalars[name] for name in wanted if name in report.scalars}

    def _report_of_state(self, sides: Sides) -> PrivacyReport:
        """Made once of the same state, so that a report after ``compute`` costs nothing, and the other way round.

        Not where scores carry a graph, nor of a scorer that may have been trained on, nor of what processes share.
        """
        if self._is_synced or not self.gather or self.bandwidth is not None or not isinstance(self.scoring, str):
            return self._report(sides)
        settings, watched = (self._settings(), self.attacks), self._watched[0].moments
        state = [row for _, rows in self._lists() for row in rows] + ([] if watched is None else [*watched.tensors()])
        known = self._latest
        if known is None or known[0] != settings or not _identical(known[1], state):
            self._latest = known = settings, state, self._report(sides)
        return known[2]

    def _settings(self) -> Settings:
        return Settings(
            self.similarity,
            self.scoring,
            self.slope,
            self.rank_model,
            self.bandwidth,
            self.enrolment,
            self.sizes,
            None if self.metrics is None else origins_of(self.metrics),
            self.intervals,
        )

    def _report(self, sides: Sides, cached: bool = True, settings: Settings | None = None) -> PrivacyReport:
        wanted, of_sessions = settings or self._settings(), sides.protected.sessions is not None
        names = [name for name in (tuple(CONDITIONS) if of_sessions else ALWAYS) if wanted.asks_for(name)]
        attacked = [name for name in names if name != "OO" and wanted.asks_for(name, "attack", "attacked_crowd")]
        attackers = self._attackers(sides, attacked) if self.attacks is not None and attacked else None
        known = self._known_of_original(sides, wanted) if cached and "OO" in names else {}
        layouts, asked = Layouts(), [name for name in names if name not in known]
        reports = [partial(report_condition, sides, CONDITIONS[name], wanted, attackers, layouts) for name in asked]
        conditions = known | dict(zip(asked, shares.in_step(reports), strict=True))
        if cached and "OO" in asked:
            self._keep_original(sides, wanted, conditions["OO"])
        if of_sessions and wanted.asks_for("OP", "calibration"):
            conditions["OP"] = with_transfer(conditions["OP"], sides, wanted)
        dtype = result_dtype(sides.original.vectors, sides.protected.vectors)
        voices = shares.of_all(sides.voices).sort().values
        report = join_conditions(conditions, voices, dtype, wanted.sizes, wanted.intervals)
        over = partial(self._bits_over, sides) if wanted.sizes else None
        return report._replace(attack_names=self.attack_names, bits_over=over)

    def _bits_over(self, sides: Sides, lengths: Sequence[int]) -> dict[int, dict[str, Tensor]]:
        """What protected speech discloses in bits over conversations of so many utterances, for a figure."""
        conditions = [name for name in CONDITIONS if name not in ("OO", "within")]
        origins = frozenset((name, family) for name in conditions for family in ("score", "rank", "attack"))
        settings = self._settings()._replace(sizes=(), intervals=None, origins=origins)
        with unsaid():
            return {
                length: self._report(conversations_of_sides(sides, length), cached=False, settings=settings).scalars
                for length in lengths
            }

    def _known_of_original(self, sides: Sides, settings: Settings) -> dict[str, ConditionReport]:
        """Original speech is the same in every epoch of a training, so its report outlives ``reset``.

        Not where scores are smooth, for of batches no two are alike, and not of a scorer that may have been trained on.
        """
        if not self._keeps_original:
            return {}
        baseline, condition = self._baseline, CONDITIONS["OO"]
        known = baseline is not None and baseline[0] == settings and _same(baseline[1], _fingerprint(sides))
        # One process may have it from before and another not: all of them walk, or none does.
        if not shares.all_agree(known, sides.voices.device) or baseline is None:
            return {}
        averages, rates = average_scores(sides, condition, settings), rates_of(sides, condition, settings)
        return {"OO": replace(baseline[2], average_scores=averages, rates=rates)}

    def _keep_original(self, sides: Sides, settings: Settings, report: ConditionReport) -> None:
        if self._keeps_original:
            self._baseline = settings, _fingerprint(sides), replace(report, average_scores=None, rates=None)

    @property
    def _keeps_original(self) -> bool:
        return self.bandwidth is None and isinstance(self.scoring, str)


def _fingerprint(sides: Sides) -> tuple[Tensor, ...]:
    """What tells one set of original utterances from another, in whatever order."""
    side = sides.original
    keys = side.keys
    order = keys.argsort()
    columns = [side.speakers, *(column for column in side[4:] if column is not None)]
    return keys[order], torch.stack([column.to(torch.int64) for column in columns])[:, order], sides.voices


def _same(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Whether two fingerprints are equal; one look at the device."""
    pairs = list(zip(one, other, strict=True))
    alike = all(a.device == b.device and a.shape == b.shape for a, b in pairs)
    return alike and bool(torch.stack([(a == b).all() for a, b in pairs]).all())


def _identical(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(one is other for one, other in zip(a, b, strict=True))
