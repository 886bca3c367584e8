"""Attackers, fitted on other speakers than they attack: what protected speech discloses to more than a cosine."""

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
