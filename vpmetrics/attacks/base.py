"""What attacks have in common: the interface, linear maps of normalised rows, and how a setting is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vpmetrics._util.dtypes import at_least_float32, widen
from vpmetrics._util.validation import check_embeddings, check_finite_embeddings, check_floating, check_tensor
from vpmetrics._utterances.conditions import SideName
from vpmetrics._utterances.utterances import row_sort_keys
from vpmetrics.attacks.moments import (
    Chain,
    PairStatistics,
    RowNormalisation,
    Solution,
    TrainingPairs,
    divide_by_norm,
    unit_rows,
)

if TYPE_CHECKING:
    from typing_extensions import Self

NOTHING, PROTECTED = "nothing", "protected speech"
LABELLED, PAIRS = "protected speech with speakers", "pairs of original and protected speech"

_FOLDS = 5  # of speakers, to choose a setting by cross-validation
_AS_GOOD = 0.01  # share of the best separation: a smaller difference may be chance or rounding


class Attack:
    """An attacker who learns from some speakers and then compares embeddings of others.

    Subclass it, or write any class with these methods. ``fit`` learns from embeddings of unit length; ``attack``
    changes both sides before they are compared, and may be left out. They are compared by cosine, or by a method
    ``score(original, protected)`` from what ``attack`` returned, ``(A, E)`` and ``(B, E)``, to scores ``(A, B)``,
    higher = more alike. With a method ``enrol(rows, speakers)``, from enrolment rows ``(A, E)`` after ``attack`` and an
    integer speaker of each to as many rows, half of the utterances of each speaker are enrolled, and compared with the
    other half.

    ``name`` is shown with results. ``needs`` is what the attacker must have: ``"nothing"``, ``"protected speech"``,
    ``"protected speech with speakers"`` or ``"pairs of original and protected speech"``, that is, the anonymiser. An
    attack with an attribute ``most_rows`` is fitted on that many utterances at most, the same ones in any order.

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
        >>> values = metric.compute()
        >>> metric.attack_names[int(values["strongest"])], values["d_ece_strongest"].item() > 0.4
        ('nearest mean', True)
    """

    name: str
    needs: str

    def fit(self, original: Tensor, protected: Tensor, speakers: Tensor) -> Any:
        """Learn from embeddings ``(N, D)`` of both sides and the speakers ``(N,)`` of their rows; return itself."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `fit`.")

    def attack(self, original: Tensor | None, protected: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return both sides as they are compared; None for a side that was left out."""
        return original, protected


class Maps(NamedTuple):
    """What a linear attack does to each side: ``(x - mean) @ map``; None for a mean of zero and for the identity.

    Example:
        >>> mean = torch.tensor([1.0, 2.0])
        >>> Maps(mean_o=mean, mean_p=-mean).map_p is None
        True
    """

    mean_o: Tensor | None = None  # (D,)
    map_o: Tensor | Chain | None = None  # (D, d), or several maps one after another
    mean_p: Tensor | None = None
    map_p: Tensor | Chain | None = None

    def prepend_steps(self, original: Chain, protected: Chain) -> Solution:
        """Return the solution that applies these steps to the rows of each side, and then its mean and map."""
        sides = []
        for steps, mean, maps in ((original, self.mean_o, self.map_o), (protected, self.mean_p, self.map_p)):
            shift = () if mean is None else (partial(torch.sub, other=mean),)
            sides.append((*steps, *shift, *((maps,) if isinstance(maps, Tensor) else maps or ())))
        return Solution(*sides)


class TunedAttack(Attack):
    """An attack with several settings; it takes the one that best separates speakers it was not fitted on.

    ``settings`` are sorted from the least to the most regularised; of nearly equal ones the last is taken.
    ``conditions`` names the kinds of pairs it is made for: ``"OP"``, ``"PP"`` or both.

    Example:
        >>> from vpmetrics.attacks import KernelRidge
        >>> isinstance(KernelRidge(), TunedAttack), KernelRidge.settings
        (True, (0.03,))
    """

    needs: str = PAIRS
    settings: Sequence[Any] = (None,)
    conditions: Sequence[str] = ("OP", "PP")
    views: Sequence[RowNormalisation] | None = None  # None for all that the pairs offer
    solution: Solution | None = None
    width: int

    def solve(self, pairs: TrainingPairs, view: RowNormalisation, setting: Any) -> Solution:
        """Return the attack fitted with one setting, on rows normalised as ``view`` says."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `solve`.")

    def choices(self, views: Sequence[RowNormalisation]) -> list[tuple[RowNormalisation, Any]]:
        """Return all settings, from the least regularised, with each way of normalising rows in turn."""
        return [(view, setting) for view in self.views or views for setting in self.settings]

    @torch.no_grad()
    def fit(
        self, original: Tensor | None = None, protected: Tensor | None = None, speakers: Tensor | None = None
    ) -> Self:
        """Learn from embeddings ``(N, D)``, row by row, and the integer speakers ``(N,)`` of the rows; return itself.

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
        pairs = TrainingPairs(original, protected, speakers)
        choice = self._choose_by_cross_validation(pairs, is_same_side="OP" not in self.conditions or original is None)
        self.solution, self.width = self.solve(pairs, *choice), protected.shape[1]
        return self

    def attack(self, original: Tensor | None, protected: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return both sides as they are compared; None for a side that was left out."""
        if self.solution is None:
            raise RuntimeError(f"Expected {type(self).__name__} to be fitted before it attacks: see `fit`.")
        sides: dict[SideName, Tensor | None] = {"original": original, "protected": protected}
        for name, rows in sides.items():
            if rows is None:
                continue
            check_floating(name, rows)
            if self.needs != NOTHING and rows.shape[-1] != self.width:
                raise ValueError(
                    f"Expected `{name}` to be {self.width} wide, as the rows fitted on, but got {rows.shape[-1]}."
                )
            sides[name] = self.solution.map_side(unit_rows(rows), name).to(at_least_float32(rows).dtype)
        return sides["original"], sides["protected"]

    def _choose_by_cross_validation(self, pairs: TrainingPairs, is_same_side: bool) -> tuple[RowNormalisation, Any]:
        """Return the choice that best separates the speakers of each fold, fitted on the other folds."""
        choices = self.choices(pairs.views)
        if len(choices) == 1 or pairs.num_speakers < 2:
            return choices[-1]  # the most regularised one
        sums = pairs.protected.new_zeros(pairs.num_speakers, pairs.protected.shape[1])
        sums = sums.index_add(0, pairs.speaker_index, pairs.protected)
        num_folds = min(_FOLDS, max(2, pairs.num_speakers // 2))
        folds = (row_sort_keys(sums).argsort(stable=True).argsort() % num_folds)[pairs.speaker_index]
        separations = torch.zeros(len(choices), dtype=sums.dtype, device=sums.device)
        columns = pairs.original, pairs.protected, pairs.speaker_index
        for fold in range(num_folds):
            o, p, speakers = (column[folds != fold] for column in columns)
            training = TrainingPairs(o, p, speakers, pairs.views)
            o, p, speakers = (column[folds == fold] for column in columns)
            is_same = speakers[:, None] == speakers
            is_target = is_same & ~torch.eye(len(speakers), dtype=torch.bool, device=speakers.device)
            for index, choice in enumerate(choices):
                solution = self.solve(training, *choice)
                test = solution.map_side(p, "protected")
                scores = score_mapped_rows(self, test if is_same_side else solution.map_side(o, "original"), test)
                separations[index] += separation_of_scores(scores, is_target, ~is_same)
        return choices[choose_most_regularised(separations)]


class LinearAttack(TunedAttack):
    """An attack that centres, normalises and maps each side linearly, as follows from the moments of pairs.

    A subclass derives ``maps`` from means and covariances of normalised pairs: ``statistics.mean_p``,
    ``statistics.pp``, ``statistics.po`` and so on. A metric can also fit it on the moments that it has observed.

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

    def solve(self, pairs: TrainingPairs, view: RowNormalisation, setting: Any) -> Solution:
        """Return, for each side, the normalisation of the view followed by the maps of normalised pairs."""
        norm_o, norm_p = (pairs.normalisation(side, view) for side in ("original", "protected"))
        return self.maps(pairs.statistics(view), setting).prepend_steps((norm_o,), (norm_p,))

    def solve_moments(self, statistics: PairStatistics, setting: Any) -> Solution:
        """Return the maps that follow from observed moments of rows of unit length."""
        return self.maps(statistics, setting).prepend_steps((widen,), (widen,))


def score_mapped_rows(attack: Any, original: Tensor, protected: Tensor) -> Tensor:
    """Return the scores ``(..., A, B)`` of rows already mapped by `attack`: its own `score`, else cosines."""
    if hasattr(attack, "score"):
        scores: Tensor = attack.score(original, protected)
        return scores
    left = divide_by_norm(original)
    return left @ (left if protected is original else divide_by_norm(protected)).mT


def has_builtin_fit(attack: Any) -> bool:
    """Return whether an attack inherits `fit` and `attack` of `TunedAttack` unchanged, so that fits can be shared."""
    return isinstance(attack, TunedAttack) and all(
        getattr(getattr(attack, name), "__func__", None) is getattr(TunedAttack, name) for name in ("fit", "attack")
    )


def is_made_for(attack: Any, is_same_side: bool) -> bool:
    """Return whether an attack is made for pairs of protected speech, or for pairs of original and protected speech."""
    return not isinstance(attack, TunedAttack) or ("PP" if is_same_side else "OP") in attack.conditions


def learns_from_moments(attack: Any) -> bool:
    """Return whether an attack can be fitted on observed moments: no subclass overrides `solve` alone."""
    if not has_builtin_fit(attack) or not isinstance(attack, LinearAttack):
        return False
    of_moments, of_pairs = (
        next(each for each in type(attack).__mro__ if name in vars(each)) for name in ("solve_moments", "solve")
    )
    return issubclass(of_moments, of_pairs) and (attack.needs != NOTHING or of_moments is not LinearAttack)


def separation_of_scores(scores: Tensor, is_target: Tensor, is_nontarget: Tensor) -> Tensor:
    """Return how well scores ``(A, B)`` separate targets, see :func:`separation_of_sums`."""
    sums = [
        torch.stack([weight.sum(), (weight * scores).sum(), (weight * scores.square()).sum()])
        for weight in (is_nontarget.to(scores), is_target.to(scores))
    ]
    return separation_of_sums(torch.stack(sums))


def separation_of_sums(sums: Tensor) -> Tensor:
    r"""Return D_ECE over its maximum as if scores were Gaussian, negative where targets score lower; 0 without a class.

    With the gap :math:`d` between the class means in standard deviations it is
    :math:`\mathrm{sign}(d) (1 - e^{-d^2 / 6.5})`, within 0.012 of D_ECE over its maximum. ``sums`` ``(2, 3, ...)``:
    number, sum and sum of squares of the scores of non-targets and of targets.
    """
    number, total, squares = sums.unbind(1)
    mean = total / number
    variance = (squares - total * mean).clamp(min=0).sum(0) / number.sum(0)
    gap = (mean[1] - mean[0]) / variance.clamp(min=torch.finfo(sums.dtype).tiny).sqrt()
    return (-torch.expm1(-gap.square() / 6.5) * gap.sign()).nan_to_num(0)


def choose_most_regularised(separations: Tensor) -> int:
    """Return the index of the last, most regularised setting that separates nearly as well as the best one."""
    size = separations.abs()  # scores may separate in either direction
    return len(separations) - 1 - int((size >= (1 - _AS_GOOD) * size.amax()).flip(0).to(torch.uint8).argmax())
