"""Everything at once: all scalars of all conditions, each condition scored once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._identification.conversations import DRAWS
from vpmetrics._scores.registry import (
    OF_POPULATION,
    add_interval_keys,
    headline_keys,
    required_families,
    required_score_measures,
    scalar,
    scalar_keys,
)
from vpmetrics._scores.scorers import Scoring, resolve_scoring
from vpmetrics._scores.speaker_similarity import SIMILARITIES
from vpmetrics._util.scalar import check_scalar_names
from vpmetrics._util.validation import (
    check_choice,
    check_distractors_by_side,
    check_finite_slope,
    check_flag,
    check_whole_number,
    check_whole_numbers,
    collect_warnings,
)
from vpmetrics._utterances.conditions import CONDITIONS, WITHOUT_SESSIONS
from vpmetrics._utterances.utterances import EvaluationData
from vpmetrics.functional.rank import MODELS
from vpmetrics.report.embedding_report import report_embeddings
from vpmetrics.report.parts import ReportSettings
from vpmetrics.report.privacy_report import PrivacyReport, add_checks_and_headline
from vpmetrics.strongest import Attacks, LearnsFromFurtherSpeakers

METRICS = ("headline", "all")


class VoicePrivacy(LearnsFromFurtherSpeakers, EmbeddingMetric):
    r"""All numbers of the other embedding metrics, from one copy of the embeddings.

    Each condition is scored once.

    As input to ``forward`` and ``update`` the metric accepts ``original (B, D)``, ``protected (B,
    D)`` and ``speakers (B,)``, and optionally ``is_reference``, ``utterances``, ``sessions`` and
    ``groups`` ``(B,)``. Several encoders or features of the same speech are dictionaries
    ``{"ecapa": (B, 192), "wavlm": (B, 512)}`` on both sides: attackers use them together, all other
    numbers are of the first one, and ``report().encoders`` has each alone.

    As output of ``compute`` the metric returns a flat dictionary of scalars. With
    ``metrics="headline"``:

    - ``disclosure``: the largest disclosure in bits by one utterance, to any attacker tried, the
      main number;
    - ``disclosure_conversation``: the same by ``conversation_utterances`` utterances of one person
      together;
    - ``found_in_100``, ``found_in_100_conversation``: how often the attacker finds the right one of
      100 people;
    - ``deid``, ``gvd``: de-identification (1.0 = 100 %) and gain of voice distinctiveness (dB);
    - ``worst_speaker_disclosure``, ``worst_speaker_chance``: the largest disclosure of one
      speaker's own trials, and what the largest of as many speakers reaches by chance (NaN where
      speakers cannot be permuted in 20 ways);
    - for ``op`` (original enrolment, protected tests) and ``pp`` (both protected), or with sessions
      ``op`` and ``across``: ``op_d_ece``, ``op_d_ece_strongest``, ``op_d_ece_chance``, ``op_eer``,
      ``op_eer_strongest``, ``op_tpr_at_1e-3_strongest``, ``op_linkability``, ``op_mean_d``,
      ``op_id_rate``; with sessions also ``within_d_ece`` and ``within_eer``;
    - ``op_l_w``, ``op_tag``: worst case of a single trial and its category.

    Rates at 100 people and at low false-positive rates are NaN of few trials, and so is what
    conversations disclose where too few speakers have two of them.

    ``metrics="all"`` adds every number of every condition. :func:`vpmetrics.scalar` describes a
    key. :meth:`report` adds the headline with its verdict, checks of the evaluation, and what
    figures need.

    ``original`` is what attackers have of known speakers, ``protected`` what they want to
    attribute. Cosine is a weak attacker: its numbers come with those of the strongest of several
    attacks (:class:`StrongestAttack`). With ``sessions`` the conditions ``within`` and ``across``
    join: protected speech of one draw of the anonymiser's secret, which should link, and of
    different draws, which should not. With ``groups`` only pairs of one group are trials, and
    :meth:`report` has all scalars of each group.

    Up to a few million trials every value is exact; beyond, scores share 65,536 bins.

    Args:
        similarity: ``"geometric"`` (2022) or ``"sigmoid"`` (2020), see
            :class:`VoiceSimilarityMatrix`.
        scoring: ``"cosine"``, ``"dot"``, ``"euclidean"``, a fitted :class:`vpmetrics.scoring.PLDA`,
            or any callable from embeddings ``(A, D)`` and ``(B, D)`` to scores ``(A, B)``, higher =
            more alike.
        rank_model: ``"empirical"`` or ``"beta_binomial"``, see :class:`SimilarityRankDisclosure`.
        slope: Slope of the local information; cross-fitted when left out, see
            :class:`LocalInformationDisclosure`.
        bandwidth: Width of the smooth surrogate's kernel in standard deviations of the scores; None
            is exact. Meant for batches: every score is kept, and no attack is tried. Training on it
            does not stop a fused attacker, to whom .60 of .64 bit were left; the losses of
            :mod:`vpmetrics.losses` have attackers of their own.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        attacks: ``"standard"``, the battery of :mod:`vpmetrics.attacks`; a sequence of attacks;
            None tries none.
        enrolment: None takes every utterance for enrolment and test. With ``is_reference``,
            ``"utterance"`` compares tests with each of the references, ``"speaker"`` with their
            mean per speaker.
        sizes: Numbers of people; adds ``op_rate_<N>``, ``op_singling_out_<N>`` with its error and
            ``op_gallery``, and the same of the other conditions: see :class:`ReidentificationRate`
            and :class:`SinglingOut`. With them ``op_rate_<N>_strongest``, after the strongest
            attack, for as many people as a fold of speakers has.
        metrics: ``"headline"``, ``"all"``, or the keys ``compute`` returns: what these do not need
            is not computed.
        intervals: Confidence level such as 0.95; adds ``<key>_low`` and ``<key>_high`` from the
            leave-one-speaker-out jackknife, for all but extremes, chance levels and single
            speakers.
        conversations: Random draws of conversations, groups of several utterances of one person; 0
            for none.
        trained_on_protected: Whether the encoder was trained on protected speech, as strong
            attackers do; a check says so where it was not.
        distractors: Embeddings ``(G, D)`` of further enrolled speakers by side, ``"original"``,
            ``"protected"`` or both. They widen the galleries of ranks, local information and
            re-identification without attacks, in conditions with enrolment of that side.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from vpmetrics.attacks import Plain, RidgeToOriginal
        >>> from vpmetrics.data import demo_voices
        >>> voices = demo_voices()
        >>> metric = VoicePrivacy(attacks=[Plain(), RidgeToOriginal()])
        >>> metric.update(voices.original, voices.protected["B2"], voices.speakers)
        >>> values = metric.compute()
        >>> [round(values[key].item(), 2) for key in ("deid", "op_d_ece", "op_d_ece_strongest")]
        [0.37, 0.38, 0.6]
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
        enrolment: Literal["utterance", "speaker"] | None = None,
        sizes: Sequence[int] | None = None,
        metrics: str | Sequence[str] = "headline",
        intervals: float | None = None,
        conversations: int = DRAWS,
        trained_on_protected: bool = False,
        distractors: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        # The surrogate is for batches, and attackers need more than a batch.
        if bandwidth is not None and attacks not in (None, "standard"):
            raise ValueError(
                "Expected `attacks` only without `bandwidth`: attackers need more than a batch."
            )
        if bandwidth is not None:
            attacks = None
        super().__init__(
            bandwidth=bandwidth, validate_args=validate_args, intervals=intervals, **kwargs
        )
        self._set_attacks(attacks)
        check_choice("enrolment", enrolment, (None, "utterance", "speaker"))
        if sizes is not None:
            check_whole_numbers(sizes, smallest=2)
        check_whole_number("conversations", conversations, 0)
        check_flag("trained_on_protected", trained_on_protected)
        self.enrolment = enrolment
        self.sizes = tuple(sizes or ())
        self.conversations = conversations
        self.trained_on_protected = trained_on_protected
        self.distractors = check_distractors_by_side(distractors)
        if isinstance(metrics, str):
            check_choice("metrics", metrics, METRICS)
            self.metrics: str | tuple[str, ...] = metrics
        else:
            # With sessions the risks of PP are not computed, without they are.
            known_keys = [
                *scalar_keys(
                    tuple(CONDITIONS), attacks is not None, has_sessions=True, sizes=self.sizes
                ),
                *scalar_keys(WITHOUT_SESSIONS, attacks is not None),
            ]
            self.metrics = check_scalar_names("metrics", metrics, known_keys)
        check_choice("similarity", similarity, SIMILARITIES)
        check_choice("rank_model", rank_model, MODELS)
        check_finite_slope(slope)
        resolve_scoring(scoring)
        self.similarity = similarity
        self.scoring = scoring
        self.rank_model = rank_model
        self.slope = slope

    def _check_reference_given(self, is_reference: Any | None) -> None:
        if self.enrolment is not None and is_reference is None:
            raise ValueError(
                f"Expected `is_reference` with enrolment={self.enrolment!r}, but got None."
            )

    def report(self) -> PrivacyReport:
        """Return headline, scalars and conditions, of all groups together and of each.

        The report is of all processes, as ``compute``. The verdict goes by 95 % intervals of the
        risks, whatever ``intervals`` is, so it costs more than ``compute``. Groups given as strings
        are found under their names.
        """
        with collect_warnings(), self._gather_states():
            data = self._collect_data()
            report = self._compute_checked_report(data)
            names = self._label_names_by_code()
            groups: dict[int | str, PrivacyReport] = {}
            for group in data.groups():
                of_group = data.of_group(group)
                groups[names.get(group, group)] = self._compute_checked_report(of_group)
            encoders = {}
            if len(data.encoders) > 1:
                for index, encoder in enumerate(data.encoders):
                    data_of_encoder = data.of_encoder(index)
                    encoders[encoder.name] = self._compute_checked_report(data_of_encoder)
        return replace(report, groups=groups, encoders=encoders)

    def _compute_checked_report(self, data: EvaluationData) -> PrivacyReport:
        return add_checks_and_headline(self._compute_report(data, has_risk_intervals=True), data)

    def plot(self, val: Any = None, ax: Any = None, label: str = "system") -> tuple[Any, Any]:
        """Draw de-identification against gain of voice distinctiveness.

        Args:
            val: A value of ``compute``, or a dictionary from names of systems to such values;
                default ``compute()``. A sequence of values is drawn as the path of a training over
                its epochs.
            ax: Matplotlib axes to draw on; several systems may share them.
            label: Name of the system, where ``val`` is one value.
        """
        from vpmetrics.plotting.system_plots import draw_deid_gvd, draw_path

        if val is None:
            val = self.compute()
        if not isinstance(val, Mapping):
            return draw_path(val, ax)
        is_one_system = not any(isinstance(value, Mapping) for value in val.values())
        systems = list(val.items())
        if is_one_system:
            systems = [(label, val)]
        for name, scalars in systems:
            missing = [key for key in ("deid", "gvd") if key not in scalars]
            if missing:
                message = (
                    f"Expected the keys 'deid' and 'gvd' of {name}, which are drawn, but"
                    f" {missing[0]!r} is missing"
                )
                raise ValueError(f"{message}; see `metrics` of VoicePrivacy.")
        return draw_deid_gvd(systems, ax)

    def _compute_value(self, data: EvaluationData) -> dict[str, Tensor]:
        return self._select_scalars(self._compute_report(data))

    def _select_scalars(self, report: PrivacyReport) -> dict[str, Tensor]:
        if self.metrics == "all":
            return dict(report.scalars)
        keys: Iterable[str] = self._requested_keys("across" in report.conditions)
        if self.intervals is not None:
            keys = add_interval_keys(keys)
        # Some may be of conditions that are missing.
        return {key: report.scalars[key] for key in keys if key in report.scalars}

    def _requested_keys(self, has_sessions: bool) -> tuple[str, ...]:
        """Return the keys of ``metrics`` without intervals."""
        if not isinstance(self.metrics, str):
            return self.metrics
        conditions: tuple[str, ...] = WITHOUT_SESSIONS
        if has_sessions:
            conditions = tuple(CONDITIONS)
        has_attacks = self.attacks is not None
        every_key = scalar_keys(conditions, has_attacks, has_sessions, self.sizes)
        if self.metrics == "all":
            return every_key
        keys_of_sizes = []
        for key in every_key:
            entry = scalar(key)
            if entry.condition != "OO" and entry.family in OF_POPULATION:
                keys_of_sizes.append(key)
        return (*headline_keys(has_attacks, has_sessions), *keys_of_sizes)

    def _compute_report(
        self, data: EvaluationData, has_risk_intervals: bool = False
    ) -> PrivacyReport:
        has_sessions = data.protected.sessions is not None
        families = measures = None
        if self.metrics != "all":
            keys = self._requested_keys(has_sessions)
            families = required_families(keys, has_sessions)
            measures = required_score_measures(keys)
        if has_risk_intervals and measures is not None:
            measures |= {"tpr_at_1e-2", "tpr_at_1e-3"}  # where no attack can be tried
        settings = ReportSettings(
            similarity=self.similarity,
            scoring=self.scoring,
            slope=self.slope,
            rank_model=self.rank_model,
            bandwidth=self.bandwidth,
            enrolment=self.enrolment,
            sizes=self.sizes,
            families=families,
            intervals=self.intervals,
            measures=measures,
            conversations=self.conversations,
            has_risk_intervals=has_risk_intervals and self.bandwidth is None,
            distractors=self.distractors,
        )
        if self.attacks is None:
            make_attacks = None
        else:
            make_attacks = partial(self._fit_attacks, data)
        report = report_embeddings(data.of_encoder(0), settings, make_attacks)
        return replace(
            report,
            speaker_names=dict(self.speaker_names),
            encoder=" and ".join(encoder.name for encoder in data.encoders if encoder.name),
            is_encoder_adapted=self.trained_on_protected,
        )
