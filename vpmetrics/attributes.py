"""Attribute disclosure: what protected speech discloses about sex, accent, age or emotion."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vpmetrics._base.privacy_metric import PrivacyMetric, States
from vpmetrics._util.dtypes import at_least_float32
from vpmetrics._util.validation import (
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

    .. math::
        D = \max\left(0,\; H(A) - \frac1N \sum_i -\log_2 p(a_i \mid x_i)\right)

    with the posteriors of a classifier that is fitted and calibrated on other speakers, see
    :func:`vpmetrics.functional.attribute_disclosure`. Regulators call it inference, the third
    criterion after singling out and linkability.

    As input to ``forward`` and ``update`` the metric accepts ``original (B, D)``, ``protected (B,
    D)``, ``speakers (B,)`` and ``attributes``, a dictionary of labels ``(B,)``, integers or
    strings.

    As output of ``compute`` the metric returns a dictionary with, for every attribute:
    ``<name>_disclosure`` in bits, 0 = nothing, with ``<name>_low`` and ``<name>_high`` where
    ``intervals`` is given; ``<name>_chance``, the disclosure with labels permuted;
    ``<name>_accuracy`` of the classifier, and ``<name>_majority``, that of always naming the
    largest class; ``<name>_original``, the disclosure of original speech.

    Args:
        attributes: Names of the attributes.
        intervals: Confidence level such as 0.95; None adds no intervals.
        permutations: How often labels are permuted for the chance level.
        validate_args: Whether values are validated for NaN and infinity; forces a GPU sync per
            update.
        kwargs: Those of :class:`torchmetrics.Metric`.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(40).repeat_interleave(5)
        >>> sex = ["f" if speaker % 2 else "m" for speaker in speakers.tolist()]
        >>> original = torch.randn(200, 8, generator=draw) + 2 * (speakers % 2)[:, None]
        >>> metric = AttributeDisclosure(attributes=["sex"])
        >>> metric.update(
        ...     original, torch.randn(200, 8, generator=draw), speakers, attributes={"sex": sex}
        ... )
        >>> values = metric.compute()
        >>> bool(values["sex_disclosure"] < 0.1), bool(values["sex_original"] > 0.8)
        (True, True)
    """

    higher_is_better: bool = False
    plot_lower_bound: float = 0.0
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
        reject_options(
            self, kwargs, {"bandwidth": "a classifier is fitted on all utterances, not on a batch"}
        )
        super().__init__(validate_args=validate_args, intervals=intervals, **kwargs)
        if (
            isinstance(attributes, str)
            or not attributes
            or not all(isinstance(name, str) for name in attributes)
        ):
            raise TypeError(
                f"Expected `attributes` to be a sequence of names, but got {attributes!r}."
            )
        self.attributes = tuple(attributes)
        self.permutations = permutations
        for state in ("original", "protected", "speakers", *map(_state_name, self.attributes)):
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
        batch = (original, protected, speakers, attributes)
        self._store(self._pack_batch(*batch, validate_values=self.validate_args))

    def _pack_batch(
        self,
        original: Tensor,
        protected: Tensor,
        speakers: Tensor | Sequence[str],
        attributes: Mapping[str, Tensor | Sequence[str]],
        validate_values: bool = False,
    ) -> dict[str, Tensor]:
        original = as_squeezed_tensor("original", original, self.device)
        protected = as_squeezed_tensor("protected", protected, self.device)
        check_floating("original", original)
        check_floating("protected", protected)
        for name in self.attributes:
            if name not in attributes:
                raise ValueError(
                    f"Expected `attributes` to hold {name!r}, but got"
                    f" {', '.join(attributes) or 'none'}."
                )
        speaker_labels = encode_labels(speakers).to(protected.device)
        labels: dict[str, Tensor] = {}
        for name in self.attributes:
            labels[f"attributes[{name!r}]"] = encode_labels(attributes[name]).to(protected.device)
        width = self.protected[0].shape[-1] if len(self.protected) else None
        check_embeddings(original, protected, speaker_labels, integer_columns=labels, width=width)
        if validate_values:
            check_finite_embeddings(original, protected)
        states = {
            "original": at_least_float32(original),
            "protected": at_least_float32(protected),
            "speakers": speaker_labels.long(),
        }
        for name, column in zip(self.attributes, labels.values(), strict=True):
            states[_state_name(name)] = column.long()
        return states

    def _empty_states(self) -> dict[str, Tensor]:
        rows = torch.empty(0, 1, device=self.device)
        states = {"original": rows, "protected": rows}
        for name in ("speakers", *map(_state_name, self.attributes)):
            states[name] = torch.empty(0, dtype=torch.int64, device=self.device)
        return states

    def _compute_from(self, states: States) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        speakers = states["speakers"]
        with collect_warnings():
            for name in self.attributes:
                labels = states[_state_name(name)]
                result = attribute_disclosure(
                    states["protected"],
                    labels,
                    speakers,
                    self.intervals,
                    self.permutations,
                    order_by=states["original"],
                )
                before = attribute_disclosure(
                    states["original"], labels, speakers, confidence=None, permutations=0
                )
                values[f"{name}_disclosure"] = result.disclosure
                if self.intervals:
                    values[f"{name}_low"] = result.low
                    values[f"{name}_high"] = result.high
                values[f"{name}_chance"] = result.chance
                values[f"{name}_accuracy"] = result.accuracy
                values[f"{name}_majority"] = result.majority
                values[f"{name}_original"] = before.disclosure
        return values


def _state_name(attribute: str) -> str:
    """Return a Python name for the labels of an attribute."""
    return "attribute_" + re.sub(r"\W|_", lambda letter: f"_{ord(letter[0]):x}_", attribute)
