"""What metrics of trials share: checked batches, and on request how sure their value is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from vpmetrics._checks import check_speakers_of_trials, check_trials, warn_once
from vpmetrics._metric.base import SureMetric
from vpmetrics._precision import at_least_float32, result_dtype
from vpmetrics._scalars import scalar
from vpmetrics._scores.intervals import interval_of
from vpmetrics._scores.weighted import MEASURES, sort_trials
from vpmetrics._scores.without import FITTED, values_without


class TrialMetric(SureMetric):
    """A metric of trials. With ``intervals`` it keeps every score and who speaks in it."""

    measure: ClassVar[str]  # what the value is called in a dictionary
    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        scores: list[Tensor]
        is_target: list[Tensor]
        trial_speakers: list[Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.intervals is not None:
            self._keep_scores()
            self.add_state("trial_speakers", default=[], dist_reduce_fx="cat")

    def _keep_scores(self) -> None:
        # The names of the states say what is in them: a collection shares what has one name and one value.
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("is_target", default=[], dist_reduce_fx="cat")

    def _check_batch(self, preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | None) -> None:
        check_trials(preds, target, self.validate_args)
        if speakers is not None:
            check_speakers_of_trials(speakers, target, self.validate_args)
        elif self.intervals is not None:
            raise ValueError("Expected `speakers` with `intervals`: trials share speakers, and so are not independent.")

    def _append(self, preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | None) -> None:
        # Copies: a view would keep the activation it was cut from alive, and change with it.
        scores, is_target = at_least_float32(preds.detach().flatten()), target.detach().flatten().bool()
        self.scores.append(scores.clone() if scores.dtype == preds.dtype else scores)
        self.is_target.append(is_target.clone() if target.dtype == torch.bool else is_target)
        if self.intervals is not None and speakers is not None:
            self.trial_speakers.append(_rows(speakers))

    def _trials(self) -> tuple[Tensor, Tensor]:
        if len(self.scores) == 0:
            return torch.empty(0, device=self.device), torch.empty(0, device=self.device, dtype=torch.bool)
        return self._joined("scores"), self._joined("is_target")

    def _value(self) -> Any:
        """The value over all trials so far, without intervals."""
        raise NotImplementedError

    def compute(self) -> Any:
        """The value over all trials so far."""
        if self.intervals is None:
            return self._value()
        scores, is_target = self._trials()
        speakers = self._joined("trial_speakers") if len(self.trial_speakers) else is_target.new_empty(0, 2).long()
        with warn_once():
            return self._with_ends(self._value(), scores, is_target, speakers)

    def _value_of_trials(self, preds: Tensor, target: Tensor) -> Any:
        """The value of some trials alone, without intervals."""
        raise NotImplementedError

    def _value_of_batch(self, preds: Tensor, target: Tensor, speakers: Sequence[Tensor] | None = None) -> Any:
        if self.intervals is None or speakers is None:
            return self._value_of_trials(preds, target)
        with warn_once():
            value = self._value_of_trials(preds, target)
            return self._with_ends(value, preds.detach().flatten(), target.flatten().bool(), _rows(speakers))

    def _with_ends(self, value: Any, scores: Tensor, is_target: Tensor, speakers: Tensor) -> dict[str, Tensor]:
        """The value as a dictionary, with both ends of the interval of each number that has one."""
        named = value if isinstance(value, dict) else {self.measure: value}
        trials = sort_trials(scores, is_target, speakers.unbind(1))
        found = dict(named)
        for key, values in values_without(trials, [name for name in named if name in MEASURES]).items():
            bias = None if key in FITTED else 0.0
            ends = interval_of(values[0], values[1:], self.intervals or 0.0, *scalar(key).range, bias=bias)
            found[f"{key}_low"], found[f"{key}_high"] = (end.to(result_dtype(scores)) for end in ends)
        return found


def _rows(speakers: Sequence[Tensor]) -> Tensor:
    """Both speakers of every trial, ``(B, 2)``; a copy."""
    return torch.stack([side.detach().flatten().long() for side in speakers], dim=1)
