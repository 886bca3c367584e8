"""What attackers have in common, and those that are linear: functions of the moments of what they have seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from vpmetrics._checks import check_choice, check_embeddings, check_floating, check_integers, check_shape, check_tensor
from vpmetrics._trials.covariances import Covariances
from vpmetrics._trials.moments import Moments, deal, moments_of
from vpmetrics._trials.separation import Maps, disclosed_share, map_rows, separation
from vpmetrics.attacks.watching import Resizable, Watched

if TYPE_CHECKING:
    from typing_extensions import Self

NOTHING, PROTECTED = "nothing", "protected speech"
LABELLED, PAIRS = "protected speech with speakers", "pairs of original and protected speech"

_GROUPS = 5  # of speakers, each left out once to choose a setting
_AS_GOOD = 0.01  # of the share disclosed, by which two settings hardly differ


class Attack(nn.Module):
    """An attacker, who learns from some speakers and changes embeddings of others before they are compared by cosine.

    Anything with these two methods is one. ``name`` tells it from others, ``needs`` says what it takes: ``"nothing"``,
    ``"protected speech"``, ``"protected speech with speakers"`` or ``"pairs of original and protected speech"``, which
    whoever can run the anonymiser has. Of more rows than ``most_rows``, where there is such an attribute, it is given
    that many, the same ones in whatever order they come.

    Example:
        >>> class Flipped(Attack):
        ...     name, needs = "flipped", "nothing"
        ...
        ...     def fit(self, original, protected, speakers):
        ...         return self
        ...
        ...     def attack(self, original, protected):
        ...         return original, None if protected is None else protected.flip(-1)
        >>> Flipped().attack(None, torch.tensor([[1.0, 2.0]]))
        (None, tensor([[2., 1.]]))
    """

    name: str
    needs: str

    def fit(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Any:
        """Learn from embeddings ``(N, D)`` of both sides and the speakers ``(N,)`` of their rows; returns itself."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `fit`.")

    def attack(self, original: Tensor | None, protected: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Both sides as the attacker compares them, by cosine; None for a side that was left out.

        To compare protected speech with protected speech, only ``protected`` is given.
        """
        raise NotImplementedError(f"Expected {type(self).__name__} to define `attack`.")


class LinearAttack(Attack, Resizable):
    """An attacker who moves and maps each side linearly, by what the moments of pairs of other speakers tell.

    It is fitted with :meth:`fit` on embeddings, or by watching: :meth:`observe` any number of times, at constant
    memory, then ``fit()``. A subclass says in ``maps`` what follows from the means and covariances of pairs
    (``moments.mean_p``, ``moments.pp``, ``moments.po``, ...), and which ``settings`` there are to choose from: the one
    that best separates speakers left out is taken.

    Example:
        >>> from vpmetrics.data import demo_voices
        >>> class Subspace(LinearAttack):
        ...     '''Both sides in the largest directions of protected speech.'''
        ...
        ...     name, needs, settings = "subspace", "protected speech", (10, 50)
        ...
        ...     def maps(self, moments, setting):
        ...         directions = moments.eigen_pp[1][..., -setting:]
        ...         return Maps(moments.mean_o, directions, moments.mean_p, directions)
        >>> watching, voices = Subspace(), demo_voices()
        >>> for part in (0, 1):
        ...     rows = voices.utterances % 2 == part
        ...     watching.observe(voices.original[rows], voices.protected["B2u"][rows], voices.speakers[rows])
        >>> watching.fit().attack(None, voices.protected["B2u"])[1].shape
        torch.Size([1036, 50])
    """

    settings: tuple[Any, ...] = (None,)

    def __init__(self) -> None:
        super().__init__()
        self.watched = Watched(_GROUPS)
        self.is_fitted = False
        for name in Maps._fields:
            self.register_buffer(name, None)

    def maps(self, moments: Covariances, setting: Any) -> Maps:
        """The maps that follow from each of ``F`` sets of pairs, with a leading dimension of ``F``."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `maps`.")

    def fit(
        self, original: Tensor | None = None, protected: Tensor | None = None, speakers: Tensor | None = None
    ) -> Self:
        """Learn from embeddings or, without arguments, from what was observed.

        Args:
            original: Floating embeddings ``(N, D)``; may be left out where the attacker needs no pairs.
            protected: Those of the protected versions, row by row.
            speakers: Integer speaker of each row, ``(N,)``.

        Returns:
            The attack itself.
        """
        if original is None and protected is None and speakers is None:
            if self.watched.moments is None:
                raise RuntimeError("Expected `observe` before `fit` without arguments.")
            return self.fit_moments(self.watched.moments)
        left, right, names = self._check(original, protected, speakers)
        groups, count = deal(right, names, _GROUPS)
        return self.fit_moments(moments_of(left.detach(), right.detach(), names, groups, count))

    @torch.no_grad()
    def fit_moments(self, moments: Moments, condition: str = "OP") -> Self:
        """Learn from moments: the setting by leaving out one group of speakers after the other, the maps from all.

        With the condition ``"PP"`` the setting is the one that best separates protected from protected speech.
        """
        best = 0
        if len(self.settings) > 1:
            best = self._best(self._separations(moments, self._of_others(moments), condition).sum(1, keepdim=True))[0]
        for name, part in zip(Maps._fields, self.maps(moments.together, self.settings[best]).of(0), strict=True):
            setattr(self, name, part)
        self.is_fitted = True
        return self

    @torch.no_grad()
    def fit_groups(self, moments: Moments, condition: str = "OP") -> Maps:
        """Maps for every group, fitted on all others, ``(G, ...)``; no group has a say in the setting of its own."""
        return self.fit_groups_for(moments, (condition,))[0]

    @torch.no_grad()
    def fit_groups_for(self, moments: Moments, conditions: Sequence[str]) -> list[Maps]:
        """The same for each of some conditions, which differ in the setting alone."""
        found = self._of_others(moments)
        if len(found) == 1:
            return found * len(conditions)
        chosen = []
        for condition in conditions:
            separated = self._separations(moments, found, condition)
            of_others = 1 - torch.eye(separated.shape[1], device=separated.device, dtype=separated.dtype)
            best = self._best(separated @ of_others)
            chosen.append(_stack([found[index].of(group) for group, index in enumerate(best)]))
        return chosen

    def observe(
        self, original: Tensor | None, protected: Tensor | None, speakers: Tensor, sessions: Tensor | None = None
    ) -> None:
        """Watch some more pairs, given as to :meth:`fit`, which then learns from all of them.

        A speaker has the same number in every batch. ``sessions`` ``(N,)`` may be given as to a metric and change
        nothing: the attacker wants the speaker behind all of them.
        """
        left, right, names = self._check(original, protected, speakers)
        if sessions is not None:
            check_integers("sessions", sessions)
            check_shape("sessions", sessions, (len(right),), "one per row of `protected`")
        self.watched.add(left, right, names)

    def attack(self, original: Tensor | None, protected: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Both sides as the attacker compares them, by cosine; None for a side that was left out."""
        if not self.is_fitted:
            raise RuntimeError(f"Expected {type(self).__name__} to be fitted before it attacks: see `fit`.")
        maps = Maps(*(getattr(self, name) for name in Maps._fields))
        check_width(original, protected, None if maps.mean_p is None else len(maps.mean_p))
        return (
            None if original is None else map_rows(original, maps.mean_o, maps.map_o),
            None if protected is None else map_rows(protected, maps.mean_p, maps.map_p),
        )

    def get_extra_state(self) -> bool:
        """Whether it was fitted: an attack without means and maps may be."""
        return self.is_fitted

    def set_extra_state(self, state: bool) -> None:
        """Take over whether it was fitted."""
        self.is_fitted = state

    def _of_others(self, moments: Moments) -> list[Maps]:
        """Maps of each setting for every group, fitted on the others."""
        return [self.maps(moments.others, setting) for setting in self.settings]

    def _separations(self, moments: Moments, found: list[Maps], condition: str) -> Tensor:
        """How well the maps of each setting separate each group, ``(settings, G)``; 0 where unknown."""
        check_choice("condition", condition, ("OP", "PP"))
        if condition == "PP":
            found = [Maps(each.mean_p, each.map_p, each.mean_p, each.map_p) for each in found]
            moments = moments.of_protected
        return disclosed_share(torch.stack([separation(moments, each) for each in found]))

    def _best(self, separations: Tensor) -> list[int]:
        """The best setting of each column, or the last that is as good, so that groups agree where it hardly matters.

        Settings go from the finest to the most regular.
        """
        top = separations.amax(0)
        as_good = separations >= top - _AS_GOOD * top.abs()
        best: list[int] = (len(separations) - 1 - as_good.to(torch.uint8).flip(0).argmax(0)).tolist()
        return best

    def _check(self, original: Any, protected: Any, speakers: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Both sides, checked; who has no original speech takes the protected to be like it."""
        check_tensor("protected", protected)
        if self.needs == PAIRS:
            check_tensor("original", original)
        check_embeddings(original, protected, speakers)
        if len(protected) == 0:
            raise ValueError("Expected `protected` to have at least one row, but got none.")
        return (protected if original is None else original), protected, speakers


def check_width(original: Any, protected: Any, width: int | None) -> None:
    """Refuse sides that are not rows of numbers, or of another width than what was fitted on."""
    for name, side in (("original", original), ("protected", protected)):
        if side is None:
            continue
        check_floating(name, side)
        if width is not None and side.shape[-1] != width:
            raise ValueError(f"Expected `{name}` to be {width} wide, as what was fitted on, but got {side.shape[-1]}.")


def _stack(maps: list[Maps]) -> Maps:
    """Maps of all groups; those to fewer dimensions are filled up with zeros, which no cosine sees."""
    return Maps(*(_stack_parts(parts) for parts in zip(*maps, strict=True)))


def _stack_parts(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    if not given:
        return None
    nothing = (
        torch.zeros_like(given[0])
        if given[0].ndim == 1
        else torch.eye(len(given[0]), device=given[0].device, dtype=given[0].dtype)
    )
    filled = [nothing if part is None else part for part in parts]
    widest = max(part.shape[-1] for part in filled)
    return torch.stack([pad(part, (0, widest - part.shape[-1])) for part in filled])
