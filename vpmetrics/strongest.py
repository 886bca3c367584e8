"""The fused attacker."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from vpmetrics._base.embedding_metric import EmbeddingMetric
from vpmetrics._scores.registry import FAMILIES, add_interval_keys, scalar_key
from vpmetrics._util.distributed import exchange_error, gather_objects
from vpmetrics._util.validation import (
    check_choice,
    check_embeddings,
    check_finite_embeddings,
    check_floating,
    reject_options,
)
from vpmetrics._utterances.conditions import Condition, look_up_condition
from vpmetrics._utterances.encoders import Embeddings, Encoder
from vpmetrics._utterances.utterances import EvaluationData, encode_labels
from vpmetrics.attacks import STANDARD
from vpmetrics.attacks.base import is_made_for
from vpmetrics.attacks.moments import MomentSums, add_moment_sums, measure_moments
from vpmetrics.report.embedding_report import report_embeddings
from vpmetrics.report.parts import ReportSettings

if TYPE_CHECKING:
    from vpmetrics.attacks.fusion import FusedAttacker

Attacks = Literal["standard"] | Sequence[Any] | None


class LearnsFromFurtherSpeakers:
    """Attacks, and pairs of further speakers that they learn from.

    What metrics with attacks share, and no metric.
    """

    takes_encoders = True

    def _set_attacks(self: Any, attacks: Attacks) -> None:
        if isinstance(attacks, str):
            check_choice("attacks", attacks, ("standard",))
            attacks = STANDARD
        elif not isinstance(attacks, Sequence | None):
            got = type(attacks).__name__
            raise TypeError(
                f"Expected `attacks` to be 'standard', None or a sequence, but got {got}."
            )
        for attack in attacks or ():
            if not (
                hasattr(attack, "fit") and (hasattr(attack, "attack") or hasattr(attack, "score"))
            ):
                name = type(attack).__name__
                raise TypeError(
                    f"Expected `attacks` to have `fit` and `attack` or `score`, but got {name}."
                )
        self.attacks = None if attacks is None else tuple(attacks)
        # Not a state: moments of attackers do not belong in a state_dict.
        self._observed: MomentSums | None = None

    def observe(
        self: Any,
        original: Embeddings,
        protected: Embeddings,
        speakers: Tensor | Sequence[str],
        sessions: Tensor | None = None,  # noqa: ARG002
    ) -> None:
        """Let the attackers also learn from pairs of speakers that are not measured.

        An attacker who has the anonymiser can run it without limit. Only moments are stored, so
        memory does not grow. ``compute`` adds the moments of all processes. They are kept until
        ``reset(observed=True)``.

        Args:
            original: Embeddings ``(B, D)`` of original speech; dictionaries where those of
                ``update`` are.
            protected: Embeddings ``(B, D)`` of their protected versions, row by row.
            speakers: Speaker of each row, ``(B,)``; a speaker has the same label in every batch.
            sessions: Accepted as in ``update``, and ignored: attacks search for the speaker in all
                sessions.
        """
        original_rows, protected_rows, encoders = self._join_encoders(original, protected)
        check_floating("original", original_rows)
        check_floating("protected", protected_rows)
        labels = encode_labels(speakers).to(original_rows.device)
        check_embeddings(original_rows, protected_rows, labels, width=self._embedding_width())
        if self.validate_args:
            check_finite_embeddings(original_rows, protected_rows)
        self._raise_if_synced()
        self._add_observed(measure_moments(original_rows, protected_rows, labels, encoders))
        self._latest_encoders = encoders
        self._computed = None

    def _add_observed(self: Any, moments: MomentSums) -> None:
        """Merge moments into those observed so far."""
        self._observed = add_moment_sums(
            [moments] if self._observed is None else [self._observed, moments]
        )

    def _merge_further(self: Any, incoming_state: dict[str, Any] | Metric) -> None:
        if (
            isinstance(incoming_state, LearnsFromFurtherSpeakers)
            and incoming_state._observed is not None
        ):
            self._add_observed(incoming_state._observed)

    def reset(self: Any, observed: bool = False) -> None:
        """Reset all states; with ``observed`` also the observed moments.

        Overridden because an attacker keeps what was observed over the epochs of a training.
        """
        EmbeddingMetric.reset(self)
        if observed:
            self._observed = None

    @property
    def attack_names(self: Any) -> tuple[str, ...]:
        """Names of the attacks that are fused."""
        from vpmetrics.attacks.features import attack_name
        from vpmetrics.attacks.fusion import append_plain_attack

        return tuple(attack_name(attack) for attack in append_plain_attack(self.attacks or ()))

    def _fit_attacks(
        self: Any, data: EvaluationData, conditions: Sequence[Condition]
    ) -> FusedAttacker:
        from vpmetrics.attacks.fusion import FusedAttacker

        gathered: list[Any] = [self._observed]
        processes = self._find_processes()
        if processes.world_size > 1:
            exchange_error(None, processes, self.device)
            if self._observed is None:
                on_host = None
            else:
                on_host = [moment.cpu() for moment in self._observed]
            gathered = gather_objects(on_host, self.process_group)
        device = data.speakers.device
        moments = []
        for moments_of_rank in gathered:
            if moments_of_rank is not None:
                moments.append(MomentSums(*(moment.to(device) for moment in moments_of_rank)))
        observed = None
        if moments:
            observed = add_moment_sums(moments)
        return FusedAttacker(
            data, self.attacks or (), conditions, observed, getattr(self, "enrolment", None)
        )

    def _known_encoders(self: Any) -> tuple[Encoder, ...]:
        encoders: tuple[Encoder, ...] = EmbeddingMetric._known_encoders(self)
        if self._observed is None:
            return encoders
        return encoders or self._latest_encoders

    def _embedding_width(self: Any) -> int | None:
        if self._observed is None:
            observed_width = None
        else:
            observed_width = self._observed.sums.shape[1] // 2
        return EmbeddingMetric._embedding_width(self) or observed_width


class StrongestAttack(LearnsFromFurtherSpeakers, EmbeddingMetric):
    """Disclosure to all attacks together, fused into one score.

    Each is fitted on other speakers than it attacks.

    Cosine is a weak attack. An attacker who can run the anonymiser learns a map that undoes much of
    it, from pairs of original and protected speech of other speakers. Speakers are divided into
    folds; every attack is fitted on all folds but one and scores pairs within it, and a logistic
    regression on pairs of the other folds weighs the scores. The result is never below the
    disclosure to plain comparison on all trials, in either direction.

    As input to ``forward`` and ``update`` the metric accepts ``original`` ``(B, D)``, ``protected``
    ``(B, D)`` and ``speakers`` ``(B,)``, see :class:`vpmetrics.VoicePrivacy`.

    As output of ``compute`` the metric returns a dictionary: ``d_ece_strongest`` in bits and
    ``eer_strongest``; ``d_ece_chance``, the result of the same procedure with speakers permuted;
    ``attack_speakers``, the number of speakers attacks were fitted on; and ``d_ece_nothing``,
    ``d_ece_protected``, ``d_ece_labelled``, ``d_ece_pairs``, the disclosure to an attacker who has
    nothing, protected speech of other speakers, also their labels, also the original speech. NaN
    with one warning for fewer than six speakers.

    Args:
        condition: ``"OP"``, ``"PP"``, or, with sessions, ``"within"`` or ``"across"``.
        attacks: ``"standard"``, the battery :data:`vpmetrics.attacks.STANDARD`; or a sequence of
            attacks, objects with ``fit(original, protected, speakers)`` and ``attack(original,
            protected)`` or ``score(original, protected)``, see :class:`vpmetrics.attacks.Attack`.
            One that is made for other pairs (its ``conditions``) raises, unless it belongs to the
            battery, where it is skipped.
        validate_args: Whether values are validated; forces a GPU sync per update.
        intervals: Confidence level, such as 0.95; adds ``<key>_low`` and ``<key>_high`` from the
            leave-one-speaker-out jackknife. Attacks and weights are not fitted again.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from vpmetrics.data import demo_voices
        >>> from vpmetrics.attacks import Plain, RidgeToOriginal
        >>> voices = demo_voices()
        >>> metric = StrongestAttack(attacks=[Plain(), RidgeToOriginal()])
        >>> metric.update(voices.original, voices.protected["B2"], voices.speakers)
        >>> values = metric.compute()
        >>> round(values["d_ece_strongest"].item(), 1), round(values["d_ece_nothing"].item(), 1)
        (0.6, 0.4)
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0

    def __init__(
        self,
        condition: str = "OP",
        attacks: Attacks = "standard",
        validate_args: bool = True,
        intervals: float | None = None,
        **kwargs: Any,
    ) -> None:
        reject_options(self, kwargs, {"bandwidth": "attacks are fitted, and that has no gradient"})
        super().__init__(validate_args=validate_args, intervals=intervals, **kwargs)
        self._set_attacks(attacks)
        is_same_side = look_up_condition(condition).is_same_side
        if condition == "OO":
            raise ValueError(
                "Expected `condition` to have a protected side to attack, but got 'OO'."
            )
        if not self.attacks:
            raise ValueError("Expected `attacks` to name at least one attack, but got none.")
        for attack in self.attacks:
            if not is_made_for(attack, is_same_side) and type(attack) not in map(type, STANDARD):
                conditions = " and ".join(attack.conditions)
                name = type(attack).__name__
                raise ValueError(
                    f"Expected `attacks` to be made for {condition}, but {name} is made for"
                    f" {conditions}."
                )
        self.condition = condition

    def _compute_value(self, data: EvaluationData) -> dict[str, Tensor]:
        name = self.condition
        families = frozenset([(self.condition, "attack")])
        settings = ReportSettings(
            families=families, intervals=self.intervals, measures=frozenset(["d_ece"])
        )
        report = report_embeddings(data, settings, partial(self._fit_attacks, data))
        keys = [entry.key for entry in FAMILIES["attack"]]
        if self.intervals is not None:
            keys = list(add_interval_keys(keys))
        else:
            keys = keys
        if name not in report.conditions:
            data.sides(look_up_condition(name))  # warns of what is missing
        nan = torch.tensor(torch.nan, device=data.speakers.device)
        return {key: report.scalars.get(scalar_key(name, key), nan) for key in keys}
