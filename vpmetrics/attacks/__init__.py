"""Attacks, fitted on other speakers than they attack.

What protected speech discloses beyond the cosine.

An attack learns with ``fit(original, protected, speakers)`` and changes what is compared with
``attack(original, protected)``. :data:`STANDARD` is the battery that metrics try: every attack in
it discloses more than all others on some data. To add one, see :class:`Attack`, and
:class:`LinearAttack` for one that follows from means and covariances.

Example:
    An attacker who has the anonymiser learns from pairs of other speakers, and reaches a higher
    disclosure:

    >>> from vpmetrics import StrongestAttack
    >>> from vpmetrics.data import demo_voices
    >>> voices = demo_voices()
    >>> for attack in (Plain(), CanonicalCorrelation()):
    ...     values = StrongestAttack(attacks=[attack])(
    ...         voices.original, voices.protected["B2u"], voices.speakers
    ...     )
    ...     print(f"{attack.name}: {values['d_ece_strongest']:.1f} bit")
    plain: 0.2 bit
    canonical correlation: 0.4 bit
"""

from vpmetrics.attacks.base import Attack, LinearAttack, TunedAttack
from vpmetrics.attacks.kernel import EvenKernelRidge, KernelRidge, OuterProducts
from vpmetrics.attacks.linear import (
    PLDA,
    AbsoluteCosine,
    CanonicalCorrelation,
    Centred,
    LikelihoodRatio,
    Plain,
    Procrustes,
    RidgeToOriginal,
    RidgeToProtected,
    SquaresToProtected,
    Whitening,
    WithinClassScaling,
    WithinClassWhitening,
)
from vpmetrics.attacks.solutions import Maps

__all__ = [
    "PLDA",
    "STANDARD",
    "AbsoluteCosine",
    "Attack",
    "CanonicalCorrelation",
    "Centred",
    "EvenKernelRidge",
    "KernelRidge",
    "LikelihoodRatio",
    "LinearAttack",
    "Maps",
    "OuterProducts",
    "Plain",
    "Procrustes",
    "RidgeToOriginal",
    "RidgeToProtected",
    "SquaresToProtected",
    "TunedAttack",
    "Whitening",
    "WithinClassScaling",
    "WithinClassWhitening",
]

STANDARD: tuple[Attack, ...] = (
    Plain(),
    AbsoluteCosine(),
    Centred(),
    Whitening(),
    WithinClassWhitening(),
    WithinClassScaling(),
    PLDA(),
    RidgeToOriginal(),
    RidgeToProtected(),
    Procrustes(),
    CanonicalCorrelation(),
    LikelihoodRatio(),
    SquaresToProtected(),
    KernelRidge(),
    EvenKernelRidge(),
    OuterProducts(),
)
"""The battery: every attack once, not fitted."""
