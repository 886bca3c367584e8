"""What the numbers come to, in words, for someone who must decide whether to release an anonymiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from vpmetrics._report import System
from vpmetrics._scalars import ENDS, key_of, scalar
from vpmetrics.app.differences import Pair
from vpmetrics.app.tables import show, with_interval

# Bits of expected disclosure, of 0.721 at most, from which on speakers count as recognised, and as partly hidden.
RECOGNISED, PARTLY = 0.25, 0.05

_HEADLINES = {
    "bad": "Speakers can be recognised.",
    "mixed": "Speakers are partly hidden.",
    "good": "Little that tells speakers was found.",
    "unknown": "Nothing can be said of how well speakers are hidden.",
}
_DISCLOSED = "d_ece", "d_ece_reversed", "d_ece_strongest"


class Verdict(NamedTuple):
    """How bad it is (``"good"``, ``"mixed"``, ``"bad"``, ``"unknown"``), in a line, and in sentences."""

    level: str
    headline: str
    sentences: tuple[str, ...]


class Attack(NamedTuple):
    """An attack, what its attacker must have, and how many were tried."""

    name: str
    needs: str
    tried: int


def verdict_of(system: System) -> Verdict:
    """The first screen of one system."""
    bits, attacked = disclosed(system), system.report.attacked
    most = max(bits, ends(system)[1])  # what so few speakers cannot rule out
    sentences = _of_attackers(system, attacked, bits)
    if _level(most) != _level(bits):
        sentences.append(f"The verdict goes by the upper end of the interval, {scalar('d_ece').show(most)} bit.")
    sentences += [*_of_turning(system, attacked), *_of_same_protection(system)]
    return Verdict(_level(most), _HEADLINES[_level(most)], tuple(sentences))


def _level(bits: float) -> str:
    if math.isnan(bits):
        return "unknown"
    return "bad" if bits >= RECOGNISED else "mixed" if bits >= PARTLY else "good"


def disclosed(system: System, condition: str | None = None) -> float:
    """The most that is known to be disclosed in a condition, in bits: to the strongest attack, in either direction."""
    where = system.report.attacked if condition is None else condition
    values = [system.scalar(key, where) for key in _DISCLOSED]
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def ends(system: System, condition: str | None = None) -> tuple[float, float]:
    """The interval of what is disclosed; NaN where it is not known."""
    where = system.report.attacked if condition is None else condition
    bits = disclosed(system, where)
    key = next((key for key in _DISCLOSED if system.scalar(key, where) == bits), _DISCLOSED[0])
    low, high = (system.scalar(f"{key}{end}", where) for end in ENDS)
    return low, high


def show_disclosed(system: System, condition: str | None = None) -> str:
    """The most that is disclosed, with its interval if that is known."""
    bits, (low, high) = disclosed(system, condition), ends(system, condition)
    known = scalar("d_ece")
    return known.show(bits) if math.isnan(low + high) else with_interval(known, bits, low, high)


def strongest(system: System, condition: str) -> Attack | None:
    """The strongest attack in a condition; None where none was tried."""
    number, known = system.scalar("strongest", condition), system.report.conditions.get(condition)
    if math.isnan(number) or known is None or known.strongest is None or not 0 <= int(number) < len(system.attacks):
        return None
    return Attack(*system.attacks[int(number)], int(known.strongest.each.isfinite().sum()))


def _of_attackers(system: System, attacked: str, bits: float) -> list[str]:
    if math.isnan(bits):
        return ["D_ECE is not defined for these trials; the notes below say why."]
    shown, most = scalar("d_ece").show, scalar("d_ece").show(0.5 / math.log(2))
    before = system.scalar("d_ece", "OO")
    of_before = "" if math.isnan(before) or not attacked else f"; original speech discloses {show('oo_d_ece', system)}"
    found = strongest(system, attacked)
    if found is None:
        weak = f"An attacker who only compares voices learns {show_disclosed(system)} of {most} bit{of_before}."
        return [weak, f"No stronger attack was tried{_why_not(system)}: take this as the least that is disclosed."]
    plain = show(key_of(attacked, "d_ece"), system)
    chance = system.scalar("d_ece_chance", attacked)
    by_chance = "" if math.isnan(chance) else f", where chance finds {shown(chance)}"
    learns = show_disclosed(system)
    says = f"The strongest of {found.tried} attacks tried, {found.name}, learns {learns} of {most} bit{by_chance}"
    return [f"{says}{of_before}.", f"It needs {found.needs}. An attacker who only compares voices learns {plain} bit."]


def _why_not(system: System) -> str:
    return f", since {system.unattacked}" if system.unattacked else ""


def _of_turning(system: System, attacked: str) -> list[str]:
    straight, turned = (system.scalar(key, attacked) for key in ("d_ece", "d_ece_reversed"))
    if not turned > 2 * straight + 0.01:
        return []
    show = scalar("d_ece").show
    return [f"Turning the sign of the scores is enough: {show(turned)} bit for {show(straight)}."]


def _of_same_protection(system: System) -> list[str]:
    within = disclosed(system, "PP")
    if math.isnan(within):
        return []
    shown, high = show_disclosed(system, "PP"), ends(system, "PP")[1]
    if max(within, high) < PARTLY:
        return [f"Protecting known recordings in the same way helps an attacker little: {shown} bit (PP)."]
    return [f"An attacker who protects known recordings in the same way learns {shown} bit (PP)."]


def verdict_of_systems(systems: Sequence[System], pairs: Sequence[Pair] = ()) -> Verdict:
    """The first screen of several systems: who hides best, as far as ``pairs`` tell, and who stays most distinct."""
    known = sorted((system for system in systems if not math.isnan(disclosed(system))), key=disclosed)
    if not known:
        return Verdict("unknown", _HEADLINES["unknown"], ())
    best, worst = known[0], known[-1]
    show = scalar("d_ece").show
    headline = f"{best.name} hides speakers best."
    sentences = [f"It discloses {show_disclosed(best)} bit, {worst.name} {show_disclosed(worst)}, of 0.721 at most."]
    undecided = [pair for pair in pairs if best.name in pair[:2] and not pair.found.told_apart]
    if undecided:
        others = ", ".join(name for pair in undecided for name in pair[:2] if name != best.name)
        headline = f"{best.name} discloses least, but these data do not tell it apart from {others}."
    if show(disclosed(best)) == show(disclosed(worst)):
        headline, sentences = f"All disclose {show(disclosed(best))} bit.", []
    distinct = [system for system in systems if math.isfinite(system.scalar("gvd"))]
    if len({scalar("gvd").show(system.scalar("gvd")) for system in distinct}) > 1:
        most = max(distinct, key=lambda system: system.scalar("gvd"))
        sentences.append(
            f"Voices stay most distinct with {most.name} (G_VD {scalar('gvd').show(most.scalar('gvd'))} dB)."
        )
    spared = [system for system in known if strongest(system, system.report.attacked) is None]
    if spared:
        why = _why_not(spared[0])
        sentences.append(f"No stronger attack than comparing voices was tried{why}: this is the least disclosed.")
    level = verdict_of(best).level
    return Verdict(level, headline, tuple(sentences))


def easiest_speakers(system: System, count: int = 3) -> tuple[str, ...]:
    """Names of the speakers who stand out most between original and protected speech: the worst protected ones."""
    known = system.report.conditions.get("OP")
    if known is None or known.alike is None or len(system.speakers) <= count:
        return ()
    own, others = known.alike
    stands_out = (own - others).nan_to_num(nan=-torch.inf)
    # Who does not stand out at all is not named.
    order = [number for number in stands_out.argsort(descending=True)[:count].tolist() if stands_out[number] > 0.05]
    return tuple(system.speakers[number] for number in order)
