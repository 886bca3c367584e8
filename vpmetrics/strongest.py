"""The strongest of several attackers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, distributed
from torchmetrics import Metric

from vpmetrics._checks import check_choice, check_embedding_values, check_embeddings, check_floating, refuse_options
from vpmetrics._intervals import left_out_of_values, with_ends
from vpmetrics._metric.embeddings import SureEmbeddingMetric
from vpmetrics._precision import result_dtype
from vpmetrics._trials.conditions import condition_of
from vpmetrics._trials.left_out import deal_blocks
from vpmetrics._trials.moments import Moments, merge
from vpmetrics._trials.strongest import Attackers, names_of_attacks
from vpmetrics._trials.utterances import Sides
from vpmetrics.attacks import STANDARD
from vpmetrics.attacks.watching import Watched

Attacks = str | Sequence[Any] | None


class AttackedMetric(SureEmbeddingMetric):
    """A metric that tries attacks, which may have observed other speakers than it measures."""

    def __init__(self, attacks: Attacks = "standard", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.attacks = _resolve(attacks)
        self.attack_names = names_of_attacks(self.attacks or ())
        """What the number of the strongest attack means; "observed" ones learnt from :meth:`observe` alone."""
        # In a list, so that it is no module of the metric: what attackers know is no state of a model.
        self._watched = [Watched()]

    def observe(
        self,
        original: Tensor,
        protected: Tensor,
        speakers: Tensor,
        sessions: Tensor | None = None,  # noqa: ARG002
    ) -> None:
        """Let the attackers watch pairs of speakers other than the measured ones, beside what they learn in folds.

        Those who have the anonymiser can run it as often as they like: on training batches, or several times on the
        same speech. Memory is that of moments, whatever the amount; processes add up what they saw. Kept until
        ``reset(observed=True)``.

        Args:
            original: Embeddings ``(B, D)`` of original speech.
            protected: Those of the protected versions, row by row.
            speakers: Who speaks, ``(B,)``; a speaker has the same number in every batch.
            sessions: As in ``update``; the attacker wants the speaker behind all sessions.
        """
        for name, side in (("original", original), ("protected", protected)):
            check_floating(name, side)
        check_embeddings(original, protected, speakers, width=self._width())
        if self.validate_args:
            check_embedding_values(original, protected)
        self._refuse_if_synced()
        self._watched[0].add(original, protected, speakers)
        self._computed = None

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add what another metric of this kind has accumulated, and what its attackers have observed."""
        super().merge_state(incoming_state)
        if isinstance(incoming_state, AttackedMetric):
            self._watched[0].join(incoming_state._watched[0])

    def reset(self, observed: bool = False) -> None:
        """Forget all utterances; with ``observed``, also what attackers have watched."""
        super().reset()
        if observed:
            self._watched[0].clear()

    def _attackers(self, sides: Sides, conditions: Sequence[str]) -> Attackers:
        watched, device = self._observed(), sides.voices.device
        if watched is not None:
            watched = Moments(*(part.to(device) for part in watched.tensors()))
        return Attackers(sides, self.attacks or (), watched, getattr(self, "enrolment", None), conditions)

    def _width(self) -> int | None:
        return super()._width() or self._watched[0].width

    def _observed(self) -> Moments | None:
        """What the attackers of all processes have watched, where their embeddings are together."""
        own = self._watched[0].moments
        if not (self._is_synced and distributed.is_available() and distributed.is_initialized()):
            return own
        found: list[Any] = [None] * distributed.get_world_size(self.process_group)
        tensors = None if own is None else [part.cpu() for part in own.tensors()]
        distributed.all_gather_object(found, tensors, group=self.process_group)
        parts = [Moments(*(part.to(self.device) for part in each)) for each in found if each is not None]
        return merge(parts) if parts else None


class StrongestAttack(AttackedMetric):
    """What the strongest of several attackers finds, each fitted on other speakers than they attack.

    Cosine is a weak attacker. Whoever can run the anonymiser learns, from pairs of original and protected speech of
    other speakers, a map that undoes much of it. ``update(original, protected, speakers)`` takes embeddings ``(B, D)``
    and integers ``(B,)``. Speakers are dealt to folds; attacks are fitted on all folds but one and score the pairs
    within that one. For each fold the attack is chosen by what it finds in the others, so that the largest of several
    noisy numbers is not taken for a finding. ``compute()`` returns a dictionary: ``d_ece_strongest`` in bits and
    ``eer_strongest``; ``strongest``, the number of the attack in :attr:`attack_names`; ``d_ece_chance``, what the same
    procedure finds for pairs of one speaker and another. NaN with one warning for fewer than six speakers.

    Args:
        condition: ``"OP"``, ``"PP"``, or, with sessions, ``"within"`` or ``"across"``.
        attacks: ``"standard"``, the battery :data:`vpmetrics.attacks.STANDARD`; or a sequence of attacks, modules with
            ``fit(original, protected, speakers)`` and ``attack(original, protected)``.
        validate_args: Look for NaN and infinite embeddings; forces a GPU sync per update.
        intervals: How often an interval is to hold the truth, such as 0.95; adds ``<key>_low`` and ``<key>_high``, from
            leaving speakers out one after the other. The attack is then chosen anew, not fitted anew.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> from vpmetrics.data import demo_voices
        >>> from vpmetrics.attacks import Plain, RidgeToOriginal
        >>> voices = demo_voices()
        >>> metric = StrongestAttack(attacks=[Plain(), RidgeToOriginal()])
        >>> metric.update(voices.original, voices.protected["B2"], voices.speakers)
        >>> values = metric.compute()
        >>> round(values["d_ece_strongest"].item(), 2), metric.attack_names[int(values["strongest"])]
        (0.61, 'ridge to original')
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
        refuse_options(self, kwargs, {"bandwidth": "attacks are chosen, and a choice has no gradient"})
        super().__init__(attacks=attacks, validate_args=validate_args, intervals=intervals, **kwargs)
        condition_of(condition)
        if condition == "OO":
            raise ValueError("Expected `condition` to have a protected side to attack, but got 'OO'.")
        if not self.attacks:
            raise ValueError("Expected `attacks` to name at least one attack, but got none.")
        self.condition = condition

    def _value_of_sides(self, sides: Sides) -> dict[str, Tensor]:
        blocks = None if self.intervals is None else deal_blocks(sides)
        found = self._attackers(sides, (self.condition,)).strongest(condition_of(self.condition), blocks)
        dtype = result_dtype(sides.original.vectors, sides.protected.vectors)
        scalars = {key: value.to(dtype) for key, value in found.scalars().items()}
        if self.intervals is None or blocks is None:
            return scalars
        left_out = None if found.without is None else left_out_of_values(found.without, blocks)
        return with_ends(scalars, left_out, self.intervals)


def _resolve(attacks: Any) -> tuple[Any, ...] | None:
    """The attacks a user asked for; None where none are to be tried."""
    if attacks is None:
        return None
    if isinstance(attacks, str):
        check_choice("attacks", attacks, ("standard",))
        return STANDARD
    if not isinstance(attacks, Sequence):
        raise TypeError(f"Expected `attacks` to be 'standard', None or a sequence, but got {type(attacks).__name__}.")
    for attack in attacks:
        if not (callable(getattr(attack, "fit", None)) and callable(getattr(attack, "attack", None))):
            raise TypeError(f"Expected `attacks` to have `fit` and `attack`, but got {type(attack).__name__}.")
    return tuple(attacks)
