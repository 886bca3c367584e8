r"""Attribute disclosure: the bits that embeddings disclose about sex, accent, age or emotion."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from vpmetrics._scores.jackknife import FEWEST_SPEAKERS, jackknife_interval
from vpmetrics._util.dtypes import result_dtype, widen
from vpmetrics._util.validation import (
    check_confidence,
    check_shape,
    check_utterances,
    check_whole_number,
    warn_undefined,
)
from vpmetrics._utterances.canonical_order import (
    hash_rows,
    lexsort_columns,
    mix_bits,
    number_sets,
    sum_hashes,
)
from vpmetrics._utterances.utterances import count_values, encode_labels, take_evenly

_SHRINKAGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the mean diagonal
_LANDMARKS = 128  # rows that kernel values are computed with
_KERNEL_WIDTH = 1.0  # of the Gaussian kernel, in mean squared distances
_MOST_FOLDS = 10
_MOST_GROUPS = 30  # of speakers, left out of the whole procedure
_NEWTON_STEPS = 12

Setting = tuple[int, float]  # of a classifier: the index of its design matrix, and its shrinkage


class AttributeResult(NamedTuple):
    """What embeddings disclose about one attribute."""

    disclosure: Tensor  # in bits
    low: Tensor
    high: Tensor
    chance: Tensor  # the disclosure with labels permuted
    accuracy: Tensor  # of the classifier
    majority: Tensor  # the accuracy of always naming the largest class
    entropy: Tensor  # in bits


def attribute_disclosure(
    embeddings: Tensor,
    labels: Tensor | Sequence[Any],
    speakers: Tensor | Sequence[Any],
    confidence: float | None = 0.95,
    permutations: int = 10,
    seed: int = 0,
    order_by: Tensor | None = None,
) -> AttributeResult:
    r"""Compute the mutual information of embeddings and an attribute, by a classifier.

    It is what the classifier realises on unseen speakers.

    .. math::
        D = \max\left(0,\; H(A) - \frac1N \sum_i -\log_2 p(a_i \mid x_i)\right)

    The classifier is linear or kernel ridge regression on embeddings of unit length, fitted on
    other speakers than it is applied to; shrinkage and kernel are chosen, and posteriors
    calibrated, on the held-out scores of other folds.

    Args:
        embeddings: Floating tensor of shape ``(N, D)``.
        labels: Attribute of each row, ``(N,)``: integers or strings.
        speakers: Speaker of each row, ``(N,)``: integers or strings.
        confidence: Confidence level of the jackknife interval, which refits without each of up to
            30 groups of speakers; None for no interval.
        permutations: How often labels are permuted for the chance level: among speakers where each
            speaker has one label, otherwise within speakers; 0 for no chance level.
        seed: Seed of the permutations.
        order_by: Embeddings ``(N, E)`` of the same rows whose values decide which speakers make a
            fold and which labels are drawn; ``embeddings`` where left out. With original speech
            here the folds stay the same while an anonymiser is trained.

    Returns:
        :class:`AttributeResult` of scalars; NaN with one warning for fewer than two classes, or
        where a class has fewer than two speakers.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(40).repeat_interleave(5)
        >>> labels = speakers % 2
        >>> embeddings = torch.randn(200, 8, generator=draw) + 2 * labels[:, None]
        >>> result = attribute_disclosure(embeddings, labels, speakers)
        >>> (
        ...     bool(result.disclosure > 0.8),
        ...     bool(result.chance < 0.1),
        ...     round(result.entropy.item(), 1),
        ... )
        (True, True, 1.0)
    """
    labels = encode_labels(labels).to(embeddings.device)
    speakers = encode_labels(speakers).to(embeddings.device)
    check_utterances("embeddings", embeddings, "speakers", speakers)
    check_shape("labels", labels, (len(embeddings),), "one per row of `embeddings`")
    if confidence is not None:
        check_confidence("confidence", confidence)
    check_whole_number("permutations", permutations, least=0)
    dtype = result_dtype(embeddings)
    # Rows, classes and speakers in canonical order, so that neither row order nor labels change a
    # draw.
    hashes = [hash_rows(embeddings)]  # the last one breaks ties
    if order_by is not None:
        check_utterances("order_by", order_by, "speakers", speakers)
        hashes.insert(0, hash_rows(order_by))
    num_classes, target = _index_labels(labels, hashes)
    hashes_with_labels = [mix_bits(hash_of_row + target) for hash_of_row in hashes]
    num_speakers, speaker_index = _index_labels(speakers, hashes_with_labels)
    order = lexsort_columns(speaker_index, target, *reversed(hashes))
    embeddings = embeddings[order]
    target = target[order]
    speaker_index = speaker_index[order]
    pairs = torch.stack([target, speaker_index]).unique(dim=1)
    if num_classes < 2 or int(count_values(pairs[0], num_classes).amin()) < 2:
        if num_classes < 2:
            reason = "two classes"
        else:
            reason = "two speakers of every class"
        warn_undefined(f"Attribute disclosure needs {reason}.")
        undefined = torch.full((), torch.nan, dtype=dtype, device=embeddings.device)
        return AttributeResult(*[undefined] * 7)
    low = high = chance = widen(embeddings.new_full((), torch.nan))
    with torch.no_grad():
        # The only label of each speaker, where all rows of a speaker share one.
        highest_label = target.new_zeros(num_speakers).scatter_reduce(
            0, speaker_index, target, "amax"
        )
        model = _fit_classifiers(embeddings, highest_label, speaker_index, num_classes)
        bits, log_posterior, settings = model.measure_disclosure(target)
        if permutations:
            generator = torch.Generator().manual_seed(seed)
            bits_by_permutation = []
            for _ in range(permutations):
                permuted = _permute_labels(target, speaker_index, highest_label, generator)
                permuted_bits, _, _ = model.measure_disclosure(permuted)
                bits_by_permutation.append(permuted_bits)
            chance = torch.stack(bits_by_permutation).clamp(min=0).mean()
        if confidence is not None and num_speakers < FEWEST_SPEAKERS:
            warn_undefined(f"Intervals need {FEWEST_SPEAKERS} speakers.")
        elif confidence is not None:
            group = speaker_index % min(num_speakers, _MOST_GROUPS)
            replicates = []
            for left_out in range(int(group.amax()) + 1):
                is_kept = group != left_out
                refitted = model.refit_on_rows(is_kept, settings)
                replicate, _, _ = refitted.measure_disclosure(target[is_kept])
                replicates.append(replicate)
            # More speakers make a better classifier: the mean of the replicates is no estimate of a
            # bias.
            low, high = jackknife_interval(
                bits,
                torch.stack(replicates),
                confidence,
                lowest=0.0,
                highest=math.log2(num_classes),
                bias=0.0,
            )
    accuracy = widen(log_posterior.argmax(1) == target).mean()
    majority = widen(count_values(target, num_classes)).amax() / len(target)
    values = (
        bits.clamp(min=0),
        low,
        high,
        chance,
        accuracy,
        majority,
        _label_entropy(target, num_classes),
    )
    return AttributeResult(*(value.to(dtype) for value in values))


def _index_labels(labels: Tensor, hashes: Sequence[Tensor]) -> tuple[int, Tensor]:
    """Return the number of labels, and the label of each row as an index in order of hashes."""
    names, index = labels.unique(return_inverse=True)
    hashes_of_names = [sum_hashes(hash_of_row, index, len(names)) for hash_of_row in hashes]
    return len(names), number_sets(*hashes_of_names)[index]


def _permute_labels(
    target: Tensor, speaker_index: Tensor, highest_label: Tensor, generator: torch.Generator
) -> Tensor:
    """Return labels permuted among speakers, or within each where a speaker has several labels."""
    if bool((highest_label[speaker_index] == target).all()):
        # Drawn on the host, so that every device draws the same.
        order = torch.randperm(len(highest_label), generator=generator, device="cpu")
        label_of_speaker = highest_label[order.to(target.device)]
        return label_of_speaker[speaker_index]
    keys = torch.rand(len(target), generator=generator, device="cpu")
    shuffled_rows = keys.to(target.device).argsort()
    # Rows by speaker: shuffled within each, and in their own order.
    shuffled_by_speaker = shuffled_rows[speaker_index[shuffled_rows].argsort(stable=True)]
    rows_by_speaker = speaker_index.argsort(stable=True)
    permuted = torch.empty_like(target)
    return permuted.scatter(0, rows_by_speaker, target[shuffled_by_speaker])


def _label_entropy(target: Tensor, num_classes: int) -> Tensor:
    share = widen(count_values(target, num_classes)) / len(target)
    return -torch.where(share > 0, share * share.log2(), 0).sum()


def _fit_classifiers(
    embeddings: Tensor, highest_label: Tensor, speaker_index: Tensor, num_classes: int
) -> _CrossFittedClassifier:
    """Return linear and kernel classifiers.

    Speakers, sorted by their label, are assigned to the folds in turn.
    """
    order = highest_label.argsort(stable=True)
    folds = torch.arange(len(order), device=order.device) % _MOST_FOLDS
    row_folds = torch.empty_like(order).scatter(0, order, folds)[speaker_index]
    rows = normalize(widen(embeddings.detach()), dim=1)
    landmarks = rows[take_evenly(torch.arange(len(rows), device=rows.device), _LANDMARKS)]
    squared = torch.cdist(rows, landmarks).square()
    kernel = torch.exp(-squared / (_KERNEL_WIDTH * squared.mean()).clamp(min=1e-12))
    features = []
    for columns in (rows, torch.cat([rows, kernel], dim=1)):
        centred = columns - columns.mean(0)
        scale = centred.square().mean().sqrt().clamp(min=1e-12)
        # The column of ones is a penalised bias.
        features.append(torch.cat([centred / scale, torch.ones_like(rows[:, :1])], dim=1))
    num_folds = min(_MOST_FOLDS, len(order))
    products = [_sum_products(design, design, row_folds, num_folds) for design in features]
    candidates = itertools.product(range(len(features)), _SHRINKAGES)
    return _CrossFittedClassifier(features, row_folds, products, candidates, num_classes)


class _CrossFittedClassifier:
    """Ridge classifiers fitted on all folds of speakers but one, for any labels of the same rows.

    ``features``: design matrices ``(N, D)`` to choose from; ``products``: for each of them
    ``features.T @ features`` of every fold, ``(K, D, D)``; ``candidates``: settings, of which each
    fold takes the one that is best on all others.
    """

    def __init__(
        self,
        features: list[Tensor],
        row_folds: Tensor,
        products: list[Tensor],
        candidates: Iterable[Setting],
        num_classes: int,
    ) -> None:
        self.features = features
        self.row_folds = row_folds
        self.products = products
        self.candidates = tuple(candidates)
        self.num_folds = len(products[0])
        self.num_classes = num_classes
        # (K, N), the rows that are not in a fold, on which its classifier is fitted
        self.is_training = (
            row_folds != torch.arange(self.num_folds, device=row_folds.device)[:, None]
        )
        self.factors = []
        for index, shrinkage in self.candidates:
            training = products[index].sum(0) - products[index]
            scale = torch.diagonal(training, dim1=1, dim2=2).mean(1)[:, None, None]
            eye = torch.eye(training.shape[1], dtype=training.dtype, device=training.device)
            self.factors.append(torch.linalg.cholesky(training + shrinkage * scale * eye))

    def refit_on_rows(self, is_kept: Tensor, candidates: set[Setting]) -> _CrossFittedClassifier:
        """Return classifiers fitted on some of the rows.

        Labels play no part yet: they are given to :meth:`measure_disclosure`. The products of all
        rows are known, so only those of the removed rows are computed and subtracted.

        Args:
            is_kept: Boolean tensor of shape ``(N,)``.
            candidates: Settings of which each fold takes one again.
        """
        kept_features: list[Tensor] = []
        kept_products: list[Tensor] = []
        removed_folds = self.row_folds[~is_kept]
        for features, products in zip(self.features, self.products, strict=True):
            removed_features = features[~is_kept]
            removed_products = _sum_products(
                removed_features, removed_features, removed_folds, self.num_folds
            )
            kept_features.append(features[is_kept])
            kept_products.append(products - removed_products)
        return _CrossFittedClassifier(
            features=kept_features,
            row_folds=self.row_folds[is_kept],
            products=kept_products,
            # In a fixed order: of two that are equally good the first is taken.
            candidates=sorted(candidates),
            num_classes=self.num_classes,
        )

    def measure_disclosure(self, target: Tensor) -> tuple[Tensor, Tensor, set[Setting]]:
        """Return the mutual information in bits, log-posteriors and the settings chosen.

        Log-posteriors ``(N, C)`` are out of fold.
        """
        labels = one_hot(target, self.num_classes).to(self.features[0].dtype)
        products = [
            _sum_products(features, labels, self.row_folds, self.num_folds)
            for features in self.features
        ]
        log_posteriors = []
        costs = []
        for (index, _), factor in zip(self.candidates, self.factors, strict=True):
            # (K, D, C)
            weights = torch.cholesky_solve(products[index].sum(0) - products[index], factor)
            scores = labels.new_zeros(labels.shape)
            for fold, weight in enumerate(weights):
                is_in_fold = self.row_folds == fold
                scores[is_in_fold] = self.features[index][is_in_fold] @ weight
            log_posteriors.append(self._calibrate_across_folds(scores, labels))
            loss = -log_posteriors[-1].gather(1, target[:, None]).squeeze(1)
            costs.append((self.is_training * loss).sum(1) / self.is_training.sum(1))
        best = torch.stack(costs).argmin(0)
        rows = torch.arange(len(target), device=target.device)
        log_posterior = torch.stack(log_posteriors)[best[self.row_folds], rows]
        cross_entropy = -log_posterior.gather(1, target[:, None]).mean() / math.log(2)
        chosen = {self.candidates[index] for index in best.tolist()}
        return _label_entropy(target, self.num_classes) - cross_entropy, log_posterior, chosen

    def _calibrate_across_folds(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return log-softmax of ``scale * score + bias``, calibrated across folds.

        Both are fitted on the held-out scores of the other folds.
        """
        weights = self.is_training.to(scores.dtype) / self.is_training.sum(1, keepdim=True)
        weights = weights[:, None]  # (K, 1, N)
        classes = labels.shape[1]
        scores = scores.T / scores.std().clamp(min=1e-12)  # (C, N)
        labels = labels.T
        theta = scores.new_zeros(self.num_folds, 1 + classes)
        ridge = 1e-3 * torch.eye(1 + classes, dtype=scores.dtype, device=scores.device)
        for _ in range(_NEWTON_STEPS):
            posterior = (theta[:, :1, None] * scores + theta[:, 1:, None]).softmax(1)  # (K, C, N)
            error = (posterior - labels) * weights
            weighted = posterior * weights
            by_scale = (error * scores).sum((1, 2))[:, None]
            by_bias = error.sum(2)
            gradient = torch.cat([by_scale, by_bias], dim=1) + theta @ ridge
            centred = scores - (posterior * scores).sum(1, keepdim=True)
            cross = (weighted * centred).sum(2)
            hessian = ridge.expand(self.num_folds, -1, -1).clone()
            hessian[:, 0, 0] += (weighted * centred.square()).sum((1, 2))
            hessian[:, 0, 1:] += cross
            hessian[:, 1:, 0] += cross
            hessian[:, 1:, 1:] += torch.diag_embed(weighted.sum(2)) - weighted @ posterior.mT
            step = torch.linalg.solve(hessian, gradient).clamp(-4, 4)
            theta = theta - step
            if bool(step.abs().amax() < 1e-6):  # the error left is about the square of this
                break
        row_theta = theta[self.row_folds].T
        return (row_theta[:1] * scores + row_theta[1:]).log_softmax(0).T


def _sum_products(features: Tensor, columns: Tensor, row_folds: Tensor, num_folds: int) -> Tensor:
    """Return ``features.T @ columns`` of each fold, ``(K, D, C)``."""
    products: list[Tensor] = []
    for fold in range(num_folds):
        is_in_fold = row_folds == fold
        products.append(features[is_in_fold].T @ columns[is_in_fold])
    return torch.stack(products)
