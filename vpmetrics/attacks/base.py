"""What attacks have in common.

The interface, and how a setting is chosen where one attack is used by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vpmetrics._util.dtypes import at_least_float32
from vpmetrics._util.validation import (
    check_embeddings,
    check_finite_embeddings,
    check_floating,
    check_tensor,
)
from vpmetrics._utterances.canonical_order import hash_rows, number_sets, sum_hashes
from vpmetrics._utterances.conditions import SideName
from vpmetrics.attacks.moments import (
    PairStatistics,
    RowNormalisation,
    TrainingSets,
    divide_by_norm,
    unit_rows,
)
from vpmetrics.attacks.solutions import AnySolution, Maps, SeparateSolutions, Solution, join_steps

if TYPE_CHECKING:
    from typing_extensions import Self

NOTHING = "nothing"
PROTECTED = "protected speech"
LABELLED = "protected speech with speakers"
PAIRS = "pairs of original and protected speech"

_FOLDS = 5  # of speakers, to choose a setting by cross-validation
_MOST_COMPARED = 512  # rows that settings are chosen on
_AS_GOOD = 0.01  # share of the best separation: a smaller difference may be chance or rounding


class Attack:
    """An attacker who learns from some speakers and then compares embeddings of others.

    Subclass it, or write any class with these methods. ``fit`` learns from embeddings of unit
    length; ``attack`` changes both sides before they are compared, and may be left out. They are
    compared by cosine, or by a method ``score(original, protected)`` from what ``attack`` returned,
    ``(A, E)`` and ``(B, E)``, to scores ``(A, B)``, higher = more alike. With a method
    ``enrol(rows, speakers)``, from enrolment rows ``(A, E)`` after ``attack`` and an integer
    speaker of each to as many rows, half of the utterances of each speaker are enrolled, and
    compared with the other half.

    ``name`` is shown with results. ``needs`` is what the attacker must have: ``"nothing"``,
    ``"protected speech"``, ``"protected speech with speakers"`` or ``"pairs of original and
    protected speech"``, that is, the anonymiser. An attack with an attribute ``most_rows`` is
    fitted on that many utterances at most, the same ones in any order.

    Example:
        Protected speech is compared with the mean of an enrolled speaker, by distance:

        >>> from vpmetrics import StrongestAttack
        >>> from vpmetrics.data import demo_voices
        >>> class NearestMean(Attack):
        ...     name, needs = "nearest mean", "nothing"
        ...
        ...     def fit(self, original, protected, speakers):
        ...         return self
        ...
        ...     def enrol(self, rows, speakers):
        ...         same = (speakers[:, None] == speakers).to(rows)
        ...         return same @ rows / same.sum(dim=1, keepdim=True)
        ...
        ...     def score(self, original, protected):
        ...         return -torch.cdist(original, protected)
        >>> voices = demo_voices()
        >>> metric = StrongestAttack(attacks=[NearestMean()])
        >>> metric.update(voices.original, voices.protected["B2"], voices.speakers)
        >>> metric.compute()["d_ece_strongest"].item() > 0.4
        True
    """

    name: str
    needs: str

    def fit(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Any:
        """Learn from embeddings ``(N, D)`` of both sides and the speakers ``(N,)`` of their rows.

        Return itself.
        """
        raise NotImplementedError(f"Expected {type(self).__name__} to define `fit`.")

    def attack(
        self, original: Tensor | None, protected: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return both sides as they are compared; None for a side that was left out."""
        return original, protected


class TunedAttack(Attack):
    """An attack of this library, with several settings.

    Each of them takes part in the fused attacker.

    Fitted by itself, it takes the setting that best separates speakers it was not fitted on.
    ``settings`` are sorted from the least to the most regularised; of nearly equal ones the last is
    taken. ``conditions`` names the kinds of pairs it is made for: ``"OP"``, ``"PP"`` or both.

    Example:
        >>> from vpmetrics.attacks import KernelRidge
        >>> isinstance(KernelRidge(), TunedAttack), KernelRidge.settings
        (True, (0.03,))
    """

    needs: str = PAIRS
    settings: Sequence[Any] = (None,)
    conditions: Sequence[str] = ("OP", "PP")
    views: Sequence[RowNormalisation] | None = None  # None for all that the training sets offer
    solution: AnySolution | None = None
    width: int

    def solve(
        self, sets: TrainingSets, view: RowNormalisation, settings: Sequence[Any]
    ) -> AnySolution:
        """Return the attack fitted on each training set with each setting.

        Rows are normalised as ``view`` says.
        """
        raise NotImplementedError(f"Expected {type(self).__name__} to define `solve`.")

    @torch.no_grad()
    def fit(
        self,
        original: Tensor | None = None,
        protected: Tensor | None = None,
        speakers: Tensor | None = None,
    ) -> Self:
        """Learn from embeddings ``(N, D)``, row by row, and return itself.

        ``speakers (N,)`` are integers.

        ``original`` may be left out where the attacker needs no pairs.
        """
        check_tensor("protected", protected)
        if self.needs == PAIRS:
            check_tensor("original", original)
        check_embeddings(original, protected, speakers)
        check_finite_embeddings(original, protected)
        assert protected is not None
        assert speakers is not None
        if len(protected) == 0:
            raise ValueError("Expected `protected` to have at least one row, but got none.")
        sets = TrainingSets(original, protected, speakers)
        is_same_side = "OP" not in self.conditions or original is None
        view, setting = self._choose_by_cross_validation(sets, is_same_side)
        self.solution = self.solve(sets, view, [setting])
        self.width = protected.shape[1]
        return self

    def attack(
        self, original: Tensor | None, protected: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return both sides as they are compared; None for a side that was left out."""
        if self.solution is None:
            raise RuntimeError(
                f"Expected {type(self).__name__} to be fitted before it attacks: see `fit`."
            )
        if original is None:
            mapped_original = None
        else:
            mapped_original = self._map_rows(original, "original")
        if protected is None:
            mapped_protected = None
        else:
            mapped_protected = self._map_rows(protected, "protected")
        return mapped_original, mapped_protected

    def _map_rows(self, rows: Tensor, side: SideName) -> Tensor:
        check_floating(side, rows)
        if self.needs != NOTHING and rows.shape[-1] != self.width:
            raise ValueError(
                f"Expected `{side}` to be {self.width} wide, as the rows fitted on, but got"
                f" {rows.shape[-1]}."
            )
        assert self.solution is not None
        mapped = self.solution.map_side(unit_rows(rows)[None], side)[0, 0]
        return mapped.to(at_least_float32(rows).dtype)

    def _choose_by_cross_validation(
        self, sets: TrainingSets, is_same_side: bool
    ) -> tuple[RowNormalisation, Any]:
        """Return the view and the setting that best separate the speakers of each fold.

        Attacks are fitted on the other folds.
        """
        views = tuple(self.views or sets.views)
        choices = list(product(views, self.settings))
        if len(choices) == 1 or sets.num_speakers < 2:
            return choices[-1]  # the most regularised one
        hashes = sum_hashes(hash_rows(sets.protected), sets.speaker_index, sets.num_speakers)
        num_folds = min(_FOLDS, max(2, sets.num_speakers // 2))
        place_of_row = number_sets(hashes)[sets.speaker_index]
        is_member = (
            torch.arange(num_folds, device=place_of_row.device)[:, None] != place_of_row % num_folds
        )
        training = TrainingSets(sets.original, sets.protected, sets.speaker_index, is_member, views)
        compared = place_of_row.argsort(stable=True)[
            :_MOST_COMPARED
        ]  # whole speakers, of every fold
        speakers = sets.speaker_index[compared]
        is_same = speakers[:, None] == speakers
        is_inside = ~is_member[:, compared]
        is_trial = is_inside[:, :, None] & is_inside[:, None]  # (T, n, n)
        is_target = (
            is_trial & is_same & ~torch.eye(len(speakers), dtype=torch.bool, device=speakers.device)
        )
        is_nontarget = is_trial & ~is_same
        separations = []
        for view in views:
            solution = self.solve(training, view, self.settings)
            test = solution.map_side(
                sets.protected[compared].expand(num_folds, -1, -1), "protected"
            )
            enrolment = test
            if not is_same_side:
                enrolment = solution.map_side(
                    sets.original[compared].expand(num_folds, -1, -1), "original"
                )
            scores = score_mapped_rows(self, enrolment, test)
            scores = scores.expand(len(self.settings), *scores.shape[1:])
            separations.append(separation_of_scores(scores, is_target, is_nontarget).sum(1))
        return choices[choose_most_regularised(torch.cat(separations))]


class LinearAttack(TunedAttack):
    """An attack that centres, normalises and maps each side linearly.

    The maps follow from the moments of pairs.

    A subclass derives ``maps`` from means and covariances of normalised pairs:
    ``statistics.mean_p`` ``(D,)``, ``statistics.pp``, ``statistics.po`` ``(D, D)`` and so on, see
    :class:`vpmetrics.attacks.moments.PairStatistics`. A metric can also fit it on the moments that
    it has observed. Where the class that defines ``maps`` says ``is_batched = True``, ``maps`` is
    called once for all training sets and settings.

    Example:
        >>> class Subspace(LinearAttack):
        ...     '''Both sides in the largest directions of protected speech.'''
        ...
        ...     name, needs, settings = "subspace", "protected speech", (5, 20)
        ...
        ...     def maps(self, statistics, setting):
        ...         directions = torch.linalg.eigh(statistics.pp)[1][:, -setting:]
        ...         return Maps(statistics.mean_o, directions, statistics.mean_p, directions)
        >>> from vpmetrics.data import demo_voices
        >>> voices = demo_voices()
        >>> attack = Subspace().fit(voices.original, voices.protected["B2u"], voices.speakers)
        >>> attack.attack(None, voices.protected["B2u"])[1].shape
        torch.Size([1036, 20])
    """

    def maps(self, statistics: PairStatistics, setting: Any) -> Maps:
        """Return the maps that follow from means and covariances of pairs."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `maps`.")

    def solve(
        self, sets: TrainingSets, view: RowNormalisation, settings: Sequence[Any]
    ) -> AnySolution:
        """Return the normalisation of the view followed by the maps, for each side.

        Maps are those of normalised pairs.
        """
        normalisers = sets.normaliser("original", view), sets.normaliser("protected", view)
        return self.solve_statistics(sets.statistics(view), settings, normalisers)

    def solve_statistics(
        self,
        statistics: PairStatistics,
        settings: Sequence[Any],
        normalisers: tuple[Any, Any] = (None, None),
    ) -> AnySolution:
        """Return the maps that follow from statistics of rows that were normalised in this way."""
        if vars(defining_class(type(self), "maps")).get("is_batched", False):
            maps = self.maps(statistics, stack_settings(settings, statistics.pp))
            return _join_maps(maps, *normalisers)
        functions: list[list[Callable[[Tensor, SideName], Tensor]]] = []
        for setting in settings:
            functions_of_setting = []
            for training_set in range(len(statistics.pp)):
                normalisers_of_set = []
                for normaliser in normalisers:
                    if normaliser is not None:
                        normaliser = normaliser.select_sets(slice(training_set, training_set + 1))
                    normalisers_of_set.append(normaliser)
                maps = self.maps(statistics.select_set(training_set), setting)
                solution = _join_maps(maps, *normalisers_of_set)
                functions_of_setting.append(_map_rows_of_one_set(solution))
            functions.append(functions_of_setting)
        return SeparateSolutions(functions)


def _join_maps(maps: Maps, normaliser_o: Any, normaliser_p: Any) -> Solution:
    return Solution(
        join_steps(normaliser_o, maps.mean_o, maps.map_o),
        join_steps(normaliser_p, maps.mean_p, maps.map_p),
    )


def _map_rows_of_one_set(solution: Solution) -> Callable[[Tensor, SideName], Tensor]:
    return lambda rows, side: solution.map_side(rows[None], side)[0, 0]


def stack_settings(settings: Sequence[Any], like: Tensor) -> Any:
    """Return the settings of an attack as tensors.

    Numbers become ``(S, 1, 1, 1)``, tuples of numbers a tuple of these, and ``[None]`` becomes
    None.

    Example:
        >>> ridge, damping = stack_settings([(0.1, 10.0), (1.0, 10.0)], torch.zeros(1))
        >>> ridge.shape, damping.flatten()
        (torch.Size([2, 1, 1, 1]), tensor([10., 10.]))
    """
    if settings[0] is None:
        return None
    table = torch.tensor(settings, dtype=like.dtype, device=like.device)
    if table.dim() == 1:
        return table.view(-1, 1, 1, 1)
    return tuple(column.reshape(-1, 1, 1, 1) for column in table.T)


def defining_class(cls: type, name: str) -> type:
    """Return the class in which a class finds a method or an attribute."""
    return next(parent for parent in cls.__mro__ if name in vars(parent))


def has_own_score(attack: Any) -> bool:
    """Return whether an attack compares rows by a method ``score`` that is no inner product."""
    if not hasattr(attack, "score"):
        return False
    if "score" in vars(attack):
        return True
    return not vars(defining_class(type(attack), "score")).get("is_inner_product", False)


def has_batched_score(attack: Any) -> bool:
    """Return whether the ``score`` of an attack takes rows with leading dimensions.

    Rows are ``(..., A, E)`` and ``(..., B, E)``.
    """
    return hasattr(attack, "score") and vars(defining_class(type(attack), "score")).get(
        "has_batched_score", False
    )


def score_mapped_rows(attack: Any, original: Tensor, protected: Tensor) -> Tensor:
    """Return the scores ``(..., A, B)`` of rows already mapped by `attack`.

    Its own `score`, else cosines.
    """
    if hasattr(attack, "score"):
        scores: Tensor = attack.score(original, protected)
        return scores
    left = divide_by_norm(original)
    right = left if protected is original else divide_by_norm(protected)
    return left @ right.mT


def has_builtin_fit(attack: Any) -> bool:
    """Return whether an attack inherits `fit` and `attack` of `TunedAttack` unchanged.

    Fits can then be shared.
    """
    if not isinstance(attack, TunedAttack):
        return False
    for name in ("fit", "attack"):
        own_function = getattr(getattr(attack, name), "__func__", None)
        if own_function is not getattr(TunedAttack, name):
            return False
    return True


def is_made_for(attack: Any, is_same_side: bool) -> bool:
    """Return whether an attack is made for this kind of pairs.

    Pairs are of protected speech, or of original and protected speech.
    """
    return (
        not isinstance(attack, TunedAttack) or ("PP" if is_same_side else "OP") in attack.conditions
    )


def learns_from_moments(attack: Any) -> bool:
    """Return whether an attack can be fitted on observed moments."""
    if not (has_builtin_fit(attack) and isinstance(attack, LinearAttack)):
        return False
    return attack.needs != NOTHING and type(attack).solve is LinearAttack.solve


def separation_of_scores(scores: Tensor, is_target: Tensor, is_nontarget: Tensor) -> Tensor:
    r"""Return D_ECE over its maximum as if scores were Gaussian.

    Negative where targets score lower, 0 without a class.

    With the gap :math:`d` between the class means in standard deviations it is
    :math:`\mathrm{sign}(d) (1 - e^{-d^2 / 6.5})`, within 0.012 of D_ECE over its maximum. Scores
    ``(..., A, B)`` give values ``(...)``.
    """
    class_sizes = []
    means = []
    squares = []
    for is_of_class in (is_nontarget, is_target):
        weight = is_of_class.to(scores)
        class_size = weight.sum((-2, -1))
        mean = (weight * scores).sum((-2, -1)) / class_size
        class_sizes.append(class_size)
        means.append(mean)
        squares.append((weight * scores.square()).sum((-2, -1)) - class_size * mean.square())
    sum_of_squares = squares[0].clamp(min=0) + squares[1].clamp(min=0)
    variance = sum_of_squares / (class_sizes[0] + class_sizes[1])
    gap = (means[1] - means[0]) / variance.clamp(min=torch.finfo(scores.dtype).tiny).sqrt()
    return (-torch.expm1(-gap.square() / 6.5) * gap.sign()).nan_to_num(0)


def choose_most_regularised(separations: Tensor) -> int:
    """Return the index of the last setting that separates nearly as well as the best one.

    Settings are sorted from the least to the most regularised.
    """
    size = separations.abs()  # scores may separate in either direction
    return (
        len(separations)
        - 1
        - int((size >= (1 - _AS_GOOD) * size.amax()).flip(0).to(torch.uint8).argmax())
    )
