"""The base class of the losses.

Arguments, unit length, bounded gradients, and D_ECE of a batch with a gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchmetrics.utilities import rank_zero_warn

from vpmetrics._scores.score_counts import Steps, count_by_score, expected_disclosure
from vpmetrics._scores.smoothing import lay_grid, soft_counts_on_grid
from vpmetrics._util.dtypes import at_least_float32, widen
from vpmetrics._util.validation import check_embeddings, check_floating
from vpmetrics._utterances.encoders import as_squeezed_tensor
from vpmetrics._utterances.utterances import encode_labels

_LARGEST_GRADIENT = 10.0  # of all unit rows together; usual gradients are below a tenth of it
_SMALLEST_LENGTH = 1e-2  # of a row; a shorter row has no larger gradient
_SMALLEST_NORM = 1e-6  # of a centred or mapped unit row; a shorter one has no direction
_WIDE_BANDWIDTH = 0.5  # has a gradient even where all targets lie far above all non-targets
_WIDE_WEIGHT = 0.1  # enough for a gradient there, and too little to matter elsewhere


class UnitRowBatch(NamedTuple):
    """Unit rows ``(B, D)`` of both sides, and their speakers and sessions, ``(B,)``."""

    original: Tensor
    protected: Tensor
    speakers: Tensor
    sessions: Tensor | None


class EmbeddingLoss(nn.Module):
    """A loss of a batch of embeddings; a subclass defines ``compute_parts``."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[str, Tensor] = {}
        self._batches = 0
        self._useless_batches = torch.zeros((), dtype=torch.long)
        self._has_warned = False

    @property
    def parts(self) -> dict[str, Tensor]:
        """The parts of the last value, which add up to it, without gradients.

        They can be given to ``self.log_dict``.
        """
        return dict(self._parts)

    def forward(
        self, original: Tensor, protected: Tensor, speakers: Tensor, sessions: Tensor | None = None
    ) -> Tensor:
        """Compute the loss of a batch, a scalar.

        Args:
            original: Floating tensor of shape ``(B, D)``.
            protected: Floating tensor of shape ``(B, D)``; row i is the anonymised version of row
                i.
            speakers: Speaker of each row, ``(B,)``: integers, or a list of strings.
            sessions: Session of each row, ``(B,)``: a speaker's utterances of one session share a
                key.
        """
        original = as_squeezed_tensor("original", original)
        protected = as_squeezed_tensor("protected", protected)
        check_floating("original", original)
        check_floating("protected", protected)
        if not isinstance(speakers, Tensor) and speakers is not None:
            speakers = encode_labels(speakers).to(original.device)
        if not isinstance(sessions, Tensor) and sessions is not None:
            sessions = encode_labels(sessions).to(original.device)
        check_embeddings(original, protected, speakers, integer_columns={"sessions": sessions})
        self._warn_of_useless_batches(speakers)
        if len(speakers) < 2:
            self._parts = {}
            return at_least_float32(original[:0]).sum() + at_least_float32(protected[:0]).sum()
        with torch.autocast(protected.device.type, enabled=False):
            original_rows: Tensor = _UnitRows.apply(original)  # type: ignore[no-untyped-call]
            protected_rows: Tensor = _UnitRows.apply(protected)  # type: ignore[no-untyped-call]
            terms = self.compute_parts(
                UnitRowBatch(original_rows, protected_rows, speakers, sessions)
            )
        self._parts = {name: term.detach() for name, term in terms.items()}
        dtype = torch.promote_types(original_rows.dtype, protected_rows.dtype)
        return torch.stack(list(terms.values())).sum().to(dtype)

    def compute_parts(self, batch: UnitRowBatch) -> dict[str, Tensor]:
        """Return the weighted parts of the loss of a validated batch of two rows or more."""
        raise NotImplementedError(f"Expected {type(self).__name__} to define `compute_parts`.")

    def extra_repr(self) -> str:
        """Return the settings, for ``print``."""
        settings: list[str] = []
        for name, value in vars(self).items():
            if name[0] != "_" and name != "training":
                settings.append(f"{name}={value}")
        return ", ".join(settings)

    def _warn_of_useless_batches(self, speakers: Tensor) -> None:
        """Warn once; a GPU sync is forced in the first, second, fourth, ... batch only."""
        if self._has_warned or torch.compiler.is_compiling():
            return
        is_same = match_labels(speakers)
        is_useless = (is_same.sum() == len(speakers)) | is_same.all()
        self._useless_batches = self._useless_batches.to(speakers.device) + is_useless
        self._batches += 1
        is_power_of_two = self._batches & (self._batches - 1) == 0
        if is_power_of_two and 10 * int(self._useless_batches) >= self._batches:
            self._has_warned = True
            rank_zero_warn(
                f"{int(self._useless_batches)} of {self._batches} batches so far had no two"
                " utterances of one speaker, or no second speaker, so they train nothing. Draw"
                " batches with `vpmetrics.data.SpeakerBatchSampler`.",
                UserWarning,
                stacklevel=7,  # the line that calls the loss, past those of nn.Module
            )


class _UnitRows(torch.autograd.Function):
    """Scale rows to unit length.

    The gradient is tangential by construction, and bounded where scores nearly tie.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        wide = at_least_float32(rows)
        # Without the division, squares of very long and very short rows leave the range of float32.
        largest = wide.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(wide.dtype).tiny)
        scaled = wide / largest
        norm = scaled.norm(dim=1, keepdim=True)
        unit: Tensor = scaled / norm.clamp(min=torch.finfo(wide.dtype).tiny)
        ctx.save_for_backward(unit, norm * largest)
        ctx.dtype = rows.dtype
        return unit

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        unit, length = ctx.saved_tensors
        tangential = gradient - (gradient * unit).sum(dim=1, keepdim=True) * unit
        bounded = tangential * (_LARGEST_GRADIENT / tangential.norm().clamp(min=_LARGEST_GRADIENT))
        result: Tensor = (bounded / length.clamp(min=_SMALLEST_LENGTH)).to(ctx.dtype)
        return result


def match_labels(labels: Tensor) -> Tensor:
    """Return a mask ``(B, B)`` of the pairs of rows with the same label."""
    return labels[:, None] == labels


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines of all rows of one side with all rows of the other, ``(B, B)``."""
    wide = torch.promote_types(first.dtype, second.dtype)
    unit_first = normalize(first.to(wide), dim=1, eps=_SMALLEST_NORM)
    unit_second = normalize(second.to(wide), dim=1, eps=_SMALLEST_NORM)
    return unit_first @ unit_second.T


def flatten_off_diagonal(matrices: Tensor) -> Tensor:
    """Return all entries of matrices ``(..., B, B)`` but the diagonals, ``(..., B * B - B)``."""
    # After the first entry, every diagonal entry is the last of B + 1.
    size = matrices.shape[-1]
    entries = matrices.flatten(-2)[..., 1:].reshape(*matrices.shape[:-2], size - 1, size + 1)
    return entries[..., :-1].flatten(-2)


def flatten_above_diagonal(matrices: Tensor) -> Tensor:
    """Return the entries of ``(..., B, B)`` above the diagonals, ``(..., B * (B - 1) / 2)``."""
    size = matrices.shape[-1]
    row, column = torch.triu_indices(size, size, offset=1, device=matrices.device)
    return matrices[..., row, column]


def has_both_classes(is_target: Tensor, is_counted: Tensor) -> Tensor:
    """Return a mask ``(A,)`` of the attackers with trials of both classes.

    Counted trials are ``(A, P)``.
    """
    return (is_counted & is_target).any(-1) & (is_counted & ~is_target).any(-1)


class Trials(NamedTuple):
    """Scores ``(A, P)`` of several attackers, their labels ``(P,)``, and which of them count.

    ``is_counted`` broadcasts to ``(A, P)``: the trials that an attacker compares.
    """

    scores: Tensor
    is_target: Tensor
    is_counted: Tensor


def sum_surrogate_disclosures(
    trials: Trials, bandwidth: float, straight_through: bool, is_two_sided: bool
) -> Tensor:
    """Return D_ECE of the scores, summed over attackers.

    Two-sided, plus that of the negated scores.

    Where a class is missing, 0 with a graph. ``straight_through``: exact values, the gradient
    smooth.
    """
    is_counted = trials.is_counted.expand(trials.scores.shape)
    trials = trials._replace(is_counted=is_counted)
    is_defined = has_both_classes(trials.is_target, is_counted)
    disclosures = _smooth_disclosures(trials, is_defined, bandwidth, is_two_sided)
    if is_two_sided:
        wide = _smooth_disclosures(trials, is_defined, _WIDE_BANDWIDTH, is_two_sided)
        disclosures = (1 - _WIDE_WEIGHT) * disclosures + _WIDE_WEIGHT * wide
    if straight_through:
        exact = _exact_disclosures(trials, is_defined, len(disclosures))
        disclosures = disclosures + (exact - disclosures).detach()
    return torch.where(is_defined, disclosures, 0).sum()


def _smooth_disclosures(
    trials: Trials, is_defined: Tensor, bandwidth: float, is_two_sided: bool
) -> Tensor:
    """Return smoothed D_ECE of every attacker, ``(1, A)``.

    Two-sided also of the negated scores, ``(2, A)``.
    """
    grid = lay_grid(trials.scores, bandwidth)
    labels = trials.is_target.long().expand_as(trials.scores)
    directions = []
    for soft_count in soft_counts_on_grid(grid, trials.scores, labels, trials.is_counted):
        # Where a class is missing, any counts will do: the logarithm of 0 would reach the gradient
        # through `where`.
        count = torch.where(is_defined[:, None], soft_count, 1)
        counts_by_sign = [count]
        if is_two_sided:
            counts_by_sign.append(count.flip(-1))
        directions.append(torch.stack(counts_by_sign))
    return expected_disclosure(Steps(grid.points[..., 1:], *directions))


def _exact_disclosures(trials: Trials, is_defined: Tensor, num_directions: int) -> Tensor:
    """Return exact D_ECE of every attacker and direction, ``(num_directions, A)``.

    0 where a class is missing.
    """
    exact = widen(trials.scores.new_zeros(num_directions, len(trials.scores)))
    for attacker in is_defined.nonzero().flatten().tolist():
        is_counted = trials.is_counted[attacker]
        scores = trials.scores.detach()[attacker, is_counted]
        counts = count_by_score(scores, trials.is_target[is_counted], validate_args=False)
        exact[:, attacker] = torch.stack(
            [expected_disclosure(steps) for steps in counts][:num_directions]
        )
    return exact
