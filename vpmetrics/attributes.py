"""Attribute disclosure: what protected speech discloses about sex, accent, age or emotion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import PrivacyMetric
from vpmetrics._util.dtypes import at_least_float32
from vpmetrics._util.validation import (
    check_confidence,
    check_embeddings,
    check_finite_embeddings,
    check_floating,
    collect_warnings,
    reject_options,
)
from vpmetrics._utterances.encoders import as_squeezed_tensor
from vpmetrics._utterances.utterances import encode_labels
from vpmetrics.functional.attributes import attribute_disclosure


class AttributeDisclosure(PrivacyMetric):
    r"""How many bits protected speech discloses about attributes of a speaker or an utterance.

    .. math:: D = \max\left(0,\; H(A) - \frac1N \sum_i -\log_2 p(a_i \mid x_i)\right)

    with the posteriors of a classifier that is fitted and calibrated on other speakers, see
    :func:`vpmetrics.functional.attribute_disclosure`. Regulators call it inference, the third criterion after singling
    out and linkability.

    As input to ``forward`` and ``update`` the metric accepts ``original (B, D)``, ``protected (B, D)``,
    ``speakers (B,)`` and ``attributes``, a dictionary of labels ``(B,)``, integers or strings.

    As output of ``compute`` the metric returns a dictionary with, for every attribute: ``<name>_disclosure`` in bits, 0
    = nothing, with ``<name>_low`` and ``<name>_high`` where ``intervals`` is given; ``<name>_chance``, the disclosure
    with labels permuted; ``<name>_accuracy`` of the classifier, and ``<name>_majority``, that of always naming the
    largest class; ``<name>_original``, the disclosure of original speech.

    Args:
        attributes: Names of the attributes.
        intervals: Confidence level such as 0.95; None adds no intervals.
        permutations: How often labels are permuted for the chance level.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(40).repeat_interleave(5)
        >>> sex = ["f" if speaker % 2 else "m" for speaker in speakers.tolist()]
        >>> original = torch.randn(200, 8, generator=draw) + 2 * (speakers % 2)[:, None]
        >>> metric = AttributeDisclosure(attributes=["sex"])
        >>> metric.update(original, torch.randn(200, 8, generator=draw), speakers, attributes={"sex": sex})
        >>> values = metric.compute()
        >>> bool(values["sex_disclosure"] < 0.1), bool(values["sex_original"] > 0.8)
        (True, True)
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0
    if TYPE_CHECKING:  # annotations that TorchScript would try to resolve
        protected: list[Tensor]
        speakers: list[Tensor]

    def __init__(
        self,
        attributes: Sequence[str],
        intervals: float | None = None,
        permutations: int = 10,
        validate_args: bool = True,
        **kwargs: Any,
    ) -> None:
        reject_options(self, kwargs, {"bandwidth": "a classifier is fitted on all utterances, not on a batch"})
        super().__init__(validate_args=validate_args, **kwargs)
        if isinstance(attributes, str) or not attributes or not all(isinstance(name, str) for name in attributes):
            raise TypeError(f"Expected `attributes` to be a sequence of names, but got {attributes!r}.")
        if intervals is not None:
            check_confidence("intervals", intervals)
        self.attributes, self.intervals, self.permutations = tuple(attributes), intervals, permutations
        # Names of states are Python names.
        names = (re.sub(r"\W|_", lambda letter: f"_{ord(letter[0]):x}_", name) for name in self.attributes)
        for state in ("original", "protected", "speakers", *(f"attribute_{name}" for name in names)):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(
        self,
        original: Tensor,
        protected: Tensor,
        speakers: Tensor | Sequence[str],
        attributes: Mapping[str, Tensor | Sequence[str]],
    ) -> None:
        """Accumulate a batch of utterances.

        Args:
            original: Embeddings ``(B, D)`` of the original speech.
            protected: Embeddings ``(B, D)`` of the protected speech, row by row.
            speakers: Speaker of each row, ``(B,)``: integers or strings.
            attributes: Labels ``(B,)`` of each attribute, integers or strings.
        """
        original, protected = as_squeezed_tensor("original", original), as_squeezed_tensor("protected", protected)
        for name, side in (("original", original), ("protected", protected)):
            check_floating(name, side)
        for name in self.attributes:
            if name not in attributes:
                raise ValueError(f"Expected `attributes` to hold {name!r}, but got {', '.join(attributes) or 'none'}.")
        speaker_labels = encode_labels(speakers).to(protected.device)
        labels = {
            f"attributes[{name!r}]": encode_labels(attributes[name]).to(protected.device) for name in self.attributes
        }
        width = self.protected[0].shape[-1] if len(self.protected) else None
        check_embeddings(original, protected, speaker_labels, integer_columns=labels, width=width)
        if self.validate_args:
            check_finite_embeddings(original, protected)
        integers = (column.long() for column in (speaker_labels, *labels.values()))
        columns = at_least_float32(original), at_least_float32(protected), *integers
        for state, column in zip(self._defaults, columns, strict=True):
            getattr(self, state).append(column.detach().clone())

    def compute(self) -> dict[str, Tensor]:
        """Return the disclosure of every attribute over all utterances so far."""
        if len(self.speakers) == 0:
            empty = torch.empty(0, 1, device=self.device)
            none = torch.empty(0, dtype=torch.int64, device=self.device)
            return self._compute_batch_value(empty, empty, none, dict.fromkeys(self.attributes, none))
        original, protected, speakers, *labels = map(self._join_in_place, self._defaults)
        return self._compute_batch_value(original, protected, speakers, dict(zip(self.attributes, labels, strict=True)))

    def _compute_batch_value(
        self, original: Tensor, protected: Tensor, speakers: Any, attributes: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        with collect_warnings():
            for name in self.attributes:
                labels = attributes[name]
                result = attribute_disclosure(protected, labels, speakers, self.intervals, self.permutations)
                before = attribute_disclosure(original, labels, speakers, confidence=None, permutations=0)
                keys = ["disclosure", *(["low", "high"] if self.intervals else []), "chance", "accuracy", "majority"]
                values |= {f"{name}_{key}": getattr(result, key) for key in keys}
                values[f"{name}_original"] = before.disclosure
        return values
