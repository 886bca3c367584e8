r"""Attribute disclosure: what embeddings tell about an attribute such as sex, accent, age group or emotion, in bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from vpmetrics._engine.jackknife import group_labels, jackknife_interval
from vpmetrics._engine.precision import result_dtype, widen
from vpmetrics._engine.utterances import count_values, encode_labels, row_keys, take_evenly
from vpmetrics._engine.validation import check_confidence, check_shape, check_utterances, check_whole, warn_undefined

_SHRINKAGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the mean diagonal
_LANDMARKS = 128  # of the kernel features
_KERNEL_WIDTH = 1.0  # of the Gaussian kernel, in mean squared distances
_MOST_FOLDS = 10
_NEWTON_STEPS = 12


class AttributeResult(NamedTuple):
    """What embeddings tell about one attribute.

    ``disclosure`` in bits with its interval ``low``, ``high``; ``chance``: the disclosure with labels permuted;
    ``accuracy`` of the classifier and ``majority``, that of always naming the largest class; ``entropy`` in bits.
    """

    disclosure: Tensor
    low: Tensor
    high: Tensor
    chance: Tensor
    accuracy: Tensor
    majority: Tensor
    entropy: Tensor


def attribute_disclosure(
    embeddings: Tensor,
    labels: Tensor | Sequence[Any],
    speakers: Tensor | Sequence[Any],
    confidence: float = 0.95,
    permutations: int = 10,
    seed: int = 0,
) -> AttributeResult:
    r"""Compute the mutual information of embeddings and an attribute, as a classifier on unseen speakers realises it.

    .. math:: D = \max\left(0,\; H(A) - \frac1N \sum_i -\log_2 p(a_i \mid x_i)\right)

    The classifier is linear or kernel ridge regression on embeddings of unit length, fitted on other speakers than it
    is applied to; shrinkage and kernel are chosen, and posteriors calibrated, on the held-out scores of other folds.

    Args:
        embeddings: Floating tensor of shape ``(N, D)``.
        labels: Attribute of each row, ``(N,)``: integers or strings.
        speakers: Speaker of each row, ``(N,)``: integers or strings.
        confidence: Confidence level of the interval, from leaving speakers out.
        permutations: How often labels are permuted for the chance level: among speakers where the attribute is one of
            the speaker, otherwise within speakers.
        seed: Seed of the permutations.

    Returns:
        :class:`AttributeResult` of scalars; NaN with one warning for fewer than two classes, or where a class has
        fewer than two speakers.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> speakers = torch.arange(40).repeat_interleave(5)
        >>> labels = speakers % 2
        >>> embeddings = torch.randn(200, 8, generator=draw) + 2 * labels[:, None]
        >>> result = attribute_disclosure(embeddings, labels, speakers)
        >>> bool(result.disclosure > 0.8), bool(result.chance < 0.1), round(result.entropy.item(), 1)
        (True, True, 1.0)
    """
    labels, speakers = encode_labels(labels).to(embeddings.device), encode_labels(speakers).to(embeddings.device)
    check_utterances("embeddings", embeddings, "speakers", speakers)
    check_shape("labels", labels, (len(embeddings),), "one per row of `embeddings`")
    check_confidence("confidence", confidence)
    check_whole("permutations", permutations, least=1)
    dtype = result_dtype(embeddings)
    # Rows, classes and speakers in an order of their values, so that neither row order nor labels change a draw.
    order = row_keys(embeddings).argsort(stable=True)
    embeddings = embeddings[order]
    classes, target = _number_by_value(embeddings, labels[order])
    names, speaker = _number_by_value(embeddings, speakers[order])
    pairs = torch.stack([target, speaker]).unique(dim=1)
    fewest = int(count_values(pairs[0], len(classes)).amin()) if len(classes) else 0
    if len(classes) < 2 or fewest < 2:
        reason = "two classes" if len(classes) < 2 else "two speakers of every class"
        warn_undefined(f"Attribute disclosure needs {reason}.")
        return AttributeResult(*[torch.full((), torch.nan, dtype=dtype, device=embeddings.device)] * 7)
    with torch.no_grad():
        model = _CrossFittedClassifier(embeddings, speaker, len(names), target, len(classes))
        posterior = model.predict(target)
        losses = -posterior.gather(1, target[:, None]).squeeze(1) / math.log(2)
        entropy = _entropy(target, len(classes))
        value = (entropy - losses.mean()).clamp(min=0)
        generator = torch.Generator().manual_seed(seed)
        chances = []
        for _ in range(permutations):
            permuted = _permute(target, speaker, len(names), generator)
            other = model.predict(permuted).gather(1, permuted[:, None]).squeeze(1) / math.log(2)
            chances.append((_entropy(permuted, len(classes)) + other.mean()).clamp(min=0))
        low, high = _interval(value, losses, target, speaker, len(classes), names, confidence)
        share = widen(count_values(target, len(classes)).amax()) / len(target)
        accuracy = (posterior.argmax(1) == target).to(losses.dtype).mean()
    values = (value, low, high, torch.stack(chances).mean(), accuracy, share, entropy)
    return AttributeResult(*(each.to(dtype) for each in values))


def _number_by_value(rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return numbers 0, 1, ... of the labels in an order of the mean row of each, and the number of every row."""
    names, index = labels.unique(return_inverse=True)
    sums = widen(rows).new_zeros(len(names), rows.shape[1]).index_add(0, index, widen(rows.detach()))
    rank = row_keys(sums / count_values(index, len(names))[:, None]).argsort(stable=True).argsort()
    return torch.arange(len(names), device=rows.device), rank[index]


class _CrossFittedClassifier:
    """Ridge classifiers fitted on all folds of speakers but one, for any labels of the same rows."""

    def __init__(self, embeddings: Tensor, speaker: Tensor, speakers: int, target: Tensor, classes: int) -> None:
        self.classes = classes
        rows = normalize(widen(embeddings.detach()), dim=1)
        self.fold, self.folds = _deal_folds(speaker, speakers, target)
        self.features = [_standardize(rows), _standardize(torch.cat([rows, _kernel_features(rows)], dim=1))]
        eye = torch.eye(self.folds, dtype=torch.bool, device=rows.device)
        self.is_other = (~eye)[self.fold].T  # (K, N), rows a fold is fitted on
        self.factors = []
        for features in self.features:
            of_folds = torch.stack([features[self.fold == k].T @ features[self.fold == k] for k in range(self.folds)])
            others = of_folds.sum(0) - of_folds
            diagonal = torch.diagonal(others, dim1=1, dim2=2)
            unit = diagonal.mean(1)[:, None, None] * torch.eye(features.shape[1], dtype=rows.dtype, device=rows.device)
            self.factors.append([torch.linalg.cholesky(others + ridge * unit) for ridge in _SHRINKAGES])

    def predict(self, target: Tensor) -> Tensor:
        """Return the log-posterior of every class, ``(N, C)``, in nats."""
        labels = one_hot(target, self.classes).to(self.features[0].dtype)
        found, costs = [], []
        for features, factors in zip(self.features, self.factors, strict=True):
            products = torch.stack([features[self.fold == k].T @ labels[self.fold == k] for k in range(self.folds)])
            others = products.sum(0) - products
            for factor in factors:
                weights = torch.cholesky_solve(others, factor)  # (K, D, C)
                scores = torch.stack([features @ each for each in weights])
                held_out = scores.gather(0, self.fold.view(1, -1, 1).expand(1, -1, self.classes)).squeeze(0)
                posterior = self._calibrate(held_out, target)
                found.append(posterior)
                loss = -posterior.gather(1, target[:, None]).squeeze(1)
                # Of all folds but each, on which the choice for that fold is made.
                costs.append((self.is_other * loss).sum(1) / self.is_other.sum(1))
        best = torch.stack(costs).argmin(0)[self.fold]
        return torch.stack(found)[best, torch.arange(len(target), device=target.device)]

    def _calibrate(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return log-posteriors: softmax of ``scale * score + bias``, fitted on the held-out scores of other folds."""
        weights = self.is_other.to(scores.dtype) / self.is_other.sum(1, keepdim=True)  # (K, N)
        scores = scores / scores.std().clamp(min=1e-12)
        labels = one_hot(target, self.classes).to(scores.dtype)
        theta = scores.new_zeros(self.folds, 1 + self.classes)
        ridge = 1e-3 * torch.eye(1 + self.classes, dtype=scores.dtype, device=scores.device)
        for _ in range(_NEWTON_STEPS):
            p = (theta[:, :1, None] * scores + theta[:, None, 1:]).softmax(2)  # (K, N, C)
            error = (p - labels) * weights[:, :, None]
            gradient = torch.cat([(error * scores).sum((1, 2))[:, None], error.sum(1)], dim=1) + theta @ ridge
            centred = scores - (p * scores).sum(2, keepdim=True)
            weighted = p * weights[:, :, None]
            hessian = ridge.expand(self.folds, -1, -1).clone()
            hessian[:, 0, 0] += (weighted * centred.square()).sum((1, 2))
            cross = (weighted * centred).sum(1)
            hessian[:, 0, 1:] += cross
            hessian[:, 1:, 0] += cross
            hessian[:, 1:, 1:] += torch.diag_embed(weighted.sum(1)) - torch.einsum("knc,knd->kcd", weighted, p)
            theta = theta - torch.linalg.solve(hessian, gradient).clamp(-4, 4)
        own = theta[self.fold]
        return (own[:, :1] * scores + own[:, 1:]).log_softmax(1)


def _deal_folds(speaker: Tensor, speakers: int, target: Tensor) -> tuple[Tensor, int]:
    """Return the fold of every row: speakers of each class are dealt in turn."""
    of_speaker = target.new_zeros(speakers).scatter_reduce(0, speaker, target, "amax")
    order = of_speaker.argsort(stable=True)
    folds = min(_MOST_FOLDS, speakers)
    turn = torch.empty_like(order).scatter(0, order, torch.arange(speakers, device=order.device) % folds)
    return turn[speaker], folds


def _standardize(features: Tensor) -> Tensor:
    """Return features with mean 0 and a constant one; the constant is penalised as little as any other."""
    centred = features - features.mean(0)
    scale = centred.square().mean().sqrt().clamp(min=1e-12)
    return torch.cat([centred / scale, torch.ones_like(features[:, :1])], dim=1)


def _kernel_features(rows: Tensor) -> Tensor:
    """Return Gaussian kernel values with landmarks, evenly spaced by value."""
    landmarks = rows[take_evenly(row_keys(rows).argsort(stable=True), _LANDMARKS)]
    squared = torch.cdist(rows, landmarks).square()
    return torch.exp(-squared / (_KERNEL_WIDTH * squared.mean()).clamp(min=1e-12))


def _permute(target: Tensor, speaker: Tensor, speakers: int, generator: torch.Generator) -> Tensor:
    """Return labels permuted among speakers where each has one, otherwise within speakers."""
    highest = torch.zeros(speakers, dtype=target.dtype, device=target.device).scatter_reduce(0, speaker, target, "amax")
    if bool((highest[speaker] == target).all()):
        return highest[torch.randperm(speakers, generator=generator).to(target.device)][speaker]
    drawn = torch.rand(len(target), generator=generator).to(target.device)
    shuffled = drawn.argsort()
    shuffled = shuffled[speaker[shuffled].argsort(stable=True)]
    return torch.empty_like(target).scatter(0, speaker.argsort(stable=True), target[shuffled])


def _entropy(target: Tensor, classes: int) -> Tensor:
    share = widen(count_values(target, classes)) / len(target)
    return -torch.where(share > 0, share * share.log2(), 0).sum()


def _interval(
    value: Tensor, losses: Tensor, target: Tensor, speaker: Tensor, classes: int, names: Tensor, confidence: float
) -> tuple[Tensor, Tensor]:
    """Return both ends of the jackknife interval; entropy and cross-entropy are recomputed without each group."""
    groups = group_labels(names)
    group = groups.group_of_label[speaker]
    total = count_values(target, classes)
    gone = count_values(group * classes + target, (groups.number + 1) * classes).view(-1, classes)[:-1]
    left = widen(total - gone)
    share = left / left.sum(1, keepdim=True)
    entropy = -torch.where(share > 0, share * share.log2(), 0).sum(1)
    sums = losses.new_zeros(groups.number + 1).index_add(0, group, losses)[:-1]
    replicates = entropy - (losses.sum() - sums) / left.sum(1)
    raw = _entropy(target, classes) - losses.mean()
    low, high = jackknife_interval(raw, replicates, confidence, 0.0, math.log2(classes), groups.ratio, bias=0.0)
    return torch.minimum(low, value), torch.maximum(high, value)
