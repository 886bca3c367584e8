"""Attacks on protected speech of which the speakers are known: what tells them apart is kept, the rest is noise."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from vpmetrics._trials.covariances import Covariances, eigen
from vpmetrics._trials.separation import Maps
from vpmetrics.attacks.base import LABELLED, LinearAttack
from vpmetrics.attacks.linear import RIDGES, scaled


class WithinClassWhitening(LinearAttack):
    """Protected speech whitened within speakers; original speech by the same map.

    The attacker must have protected speech and know which of it is of one speaker.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor([0.1, 0.1, 9.0, 9.0])
        >>> _, found = WithinClassWhitening().fit(protected=protected, speakers=speakers).attack(None, protected)
        >>> [bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5) for x in (protected, found)]
        [False, True]
    """

    name, needs, settings = "within-class whitening", LABELLED, RIDGES

    def maps(self, moments: Covariances, setting: float) -> Maps:
        """An inverse root of the covariance within speakers: the same for both sides, so any rotation of it will do."""
        return _alike(moments, scaled(moments.eigen_within, setting, -0.5))


class Discriminant(LinearAttack):
    """Linear discriminant analysis: the few directions that tell protected speakers apart best, for both sides.

    The attacker must have protected speech and know which of it is of one speaker.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor([0.1, 0.1, 9.0, 9.0])
        >>> _, found = Discriminant().fit(protected=protected, speakers=speakers).attack(None, protected)
        >>> [bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5) for x in (protected, found)]
        [False, True]
    """

    name, needs = "discriminant", LABELLED
    settings = tuple(product((1e-4, 1e-2, 1.0), (10, 30, 100)))  # ridges and numbers of directions

    def maps(self, moments: Covariances, setting: tuple[float, int]) -> Maps:
        """Leading eigenvectors of the covariance between speakers, where that within is the identity."""
        ridge, directions = setting
        white = scaled(moments.eigen_within, ridge, -0.5)
        between = white.mT @ (moments.pp - moments.within_pp) @ white
        return _alike(moments, white @ eigen(between)[1][..., -directions:])


class PLDAPosterior(LinearAttack):
    r"""Protected speech as PLDA weighs it; original speech by the same map.

    Where the covariance within speakers is the identity and that between is diagonal, :math:`b`, two utterances say
    :math:`b / (1 + 2b)` times their product about being of one speaker (see :class:`vpmetrics.scoring.PLDA`): large
    where speakers differ, nothing where they do not. The attacker must have protected speech and know which of it is of
    one speaker.

    Example:
        >>> draw, speakers = torch.Generator().manual_seed(0), torch.arange(80) // 4
        >>> voices = torch.nn.functional.pad(torch.randn(20, 2, generator=draw), (0, 2))[speakers]
        >>> protected = voices + torch.randn(80, 4, generator=draw) * torch.tensor([0.1, 0.1, 9.0, 9.0])
        >>> _, found = PLDAPosterior().fit(protected=protected, speakers=speakers).attack(None, protected)
        >>> [bool(torch.cosine_similarity(x[0::4], x[1::4]).mean() > 0.5) for x in (protected, found)]
        [False, True]
    """

    name, needs, settings = "PLDA", LABELLED, RIDGES

    def maps(self, moments: Covariances, setting: float) -> Maps:
        """The basis of PLDA, weighted by the root of what a product says."""
        white = scaled(moments.eigen_within, setting, -0.5) * _degrees(moments).sqrt()
        values, vectors = eigen(white.mT @ between_speakers(moments) @ white)
        said = values.clamp(min=0)
        return _alike(moments, white @ vectors * (said / (1 + 2 * said)).sqrt()[:, None])


def between_speakers(moments: Covariances) -> Tensor:
    """Covariance between protected speakers, without the share of that within that the speakers' means still hold."""
    count, speakers, squares = (part[:, None, None] for part in (moments.count, moments.speakers, moments.squares))
    within = moments.within_pp / _degrees(moments)
    effective = (count - squares / count).clamp(min=1)
    return (count * (moments.pp - moments.within_pp) - (speakers - 1) * within) / effective


def _degrees(moments: Covariances) -> Tensor:
    """What a covariance within speakers, per utterance, is to be divided by to be unbiased."""
    freedom = (moments.count - moments.speakers) / moments.count
    return freedom.clamp(min=torch.finfo(freedom.dtype).eps)[:, None, None]


def _alike(moments: Covariances, matrix: Tensor) -> Maps:
    """The same map for both sides, each about its own mean."""
    return Maps(moments.mean_o, matrix, moments.mean_p, matrix)
