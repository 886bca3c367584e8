"""Attackers, fitted on other speakers than they attack: what protected speech discloses to more than a cosine.

An attack learns with ``fit(original, protected, speakers)`` and then changes what it compares, by cosine, with
``attack(original, protected)``. What its attacker must have stands in ``needs``. :data:`STANDARD` holds one of each.

Example:
    Who can run the anonymiser on voices of their own learns what it does, and finds more in those of others:

    >>> import torch
    >>> from torch.nn.functional import normalize
    >>> from vpmetrics import ZebraDisclosure
    >>> from vpmetrics.data import demo_voices
    >>> voices = demo_voices()
    >>> own, protected = voices.speakers % 2 == 0, voices.protected["B2u"]
    >>> speakers = voices.speakers[~own]
    >>> trials = ~torch.eye(len(speakers), dtype=torch.bool)
    >>> for attack in (Plain(), CanonicalCorrelation()):
    ...     _ = attack.fit(voices.original[own], protected[own], voices.speakers[own])
    ...     o, p = attack.attack(voices.original[~own], protected[~own])
    ...     scores = normalize(o) @ normalize(p).T
    ...     disclosed = ZebraDisclosure()(scores[trials], (speakers[:, None] == speakers)[trials])
    ...     print(f"{attack.name}: {disclosed['d_ece']:.2f} bit")
    plain: 0.18 bit
    canonical correlation: 0.34 bit

An attack of one's own is a class with these two methods, see :class:`Attack`; one that is linear can also watch a
training, see :class:`LinearAttack`.
"""

from vpmetrics._trials.separation import Maps
from vpmetrics.attacks.base import Attack, LinearAttack
from vpmetrics.attacks.kernel import KernelRidge
from vpmetrics.attacks.labelled import Discriminant, PLDAPosterior, WithinClassWhitening
from vpmetrics.attacks.linear import (
    CanonicalCorrelation,
    Centred,
    Plain,
    Procrustes,
    ReducedProcrustes,
    RidgeToOriginal,
    RidgeToProtected,
    Whitened,
    ridge_map,
)

__all__ = [
    "STANDARD",
    "Attack",
    "CanonicalCorrelation",
    "Centred",
    "Discriminant",
    "KernelRidge",
    "LinearAttack",
    "Maps",
    "PLDAPosterior",
    "Plain",
    "Procrustes",
    "ReducedProcrustes",
    "RidgeToOriginal",
    "RidgeToProtected",
    "Whitened",
    "WithinClassWhitening",
    "ridge_map",
]

STANDARD: tuple[Attack, ...] = (
    Plain(),
    Centred(),
    Whitened(),
    RidgeToOriginal(),
    RidgeToProtected(),
    Procrustes(),
    ReducedProcrustes(),
    CanonicalCorrelation(),
    Discriminant(),
    WithinClassWhitening(),
    PLDAPosterior(),
    KernelRidge(),
)
"""The battery: every attack once, not fitted."""
