"""What a report says first.

The level of leakage, the risks it follows from, and who is protected worst.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vpmetrics._scores.registry import scalar
from vpmetrics._util.scalar import DASH

Level = Literal["low", "moderate", "high", "inconclusive"]


@dataclass(frozen=True)
class Risk:
    """One risk of a person in one condition, and what is held against it.

    ``name``: ``"disclosure_conversation"``, ``"disclosure"``, ``"found_in_100"``,
    ``"tpr_at_1e-3"``, ``"tpr_at_1e-2"`` or ``"worst_speaker"``. ``low`` and ``high``: the 95 %
    interval. ``low_corrected``: the one-sided lower end at a level of 95 % for all risks of all
    conditions together, which ``chance`` is compared with. ``limit_low`` and ``limit_high``: below
    the first a risk is low, above the second it is high. ``utterances``: how many of one person the
    attacker has. ``num_speakers``: 0 where the speakers of trials are unknown; ``has_many_trials``:
    whether there are at least a hundred target trials. ``sentence``: the risk in words.
    """

    name: str
    condition: str
    value: float
    low: float
    high: float
    chance: float
    limit_low: float
    limit_high: float
    sentence: str = ""
    low_corrected: float = math.nan
    utterances: int = 1
    num_speakers: int = 0
    has_many_trials: bool = False

    @property
    def is_in_bits(self) -> bool:
        """Whether the risk is a disclosure; otherwise it is a share."""
        return self.name in ("disclosure", "disclosure_conversation", "worst_speaker")

    @property
    def is_known(self) -> bool:
        """Whether the value and its interval are defined."""
        return not (math.isnan(self.value) or math.isnan(self.high))

    @property
    def is_shown(self) -> bool:
        """Whether the data show that the risk exceeds chance.

        Where the speakers of trials are unknown there is no interval, and many trials must exceed
        the upper limit.
        """
        if self.num_speakers == 0:
            return self.has_many_trials and self.value > self.limit_high
        chance = self.chance
        if math.isnan(chance):
            chance = self.limit_low
        return self.low_corrected > chance

    @property
    def is_excluded(self) -> bool:
        """Whether the data exclude a risk above the lower limit."""
        return self.high < self.limit_low

    @property
    def level(self) -> Level:
        """``"high"`` or ``"moderate"`` where that is shown, ``"low"`` where more is excluded."""
        if self.is_shown and self.value > self.limit_high:
            return "high"
        if self.is_shown and self.value > self.limit_low:
            return "moderate"
        if self.is_known and self.is_excluded:
            return "low"
        return "inconclusive"

    @property
    def more_speakers_needed(self) -> float:
        """About how many more speakers would exclude the risk.

        NaN where the value reaches the limit or is unknown.
        """
        if not self.is_known or self.value >= self.limit_low or self.is_excluded:
            return math.nan
        ratio = (self.high - self.value) / (self.limit_low - self.value)
        return self.num_speakers * (ratio**2 - 1)


@dataclass(frozen=True)
class Headline:
    """The numbers to read first, and the verdict on them.

    ``level``: the leakage. ``verdict``: one sentence, the same everywhere. ``risks``: what the
    level follows from. ``disclosure``, ``disclosure_conversation`` (of ``conversation_utterances``
    of one person) and ``found_in_100`` with their 95 % intervals: the larger of both conditions.
    ``condition`` attains the disclosure; ``attack`` and ``needs``: how, and what the attacker must
    have; ``encoder``: with what voices are compared. ``worst_speaker``: name of the speaker who
    discloses most, None where unknown, ``worst_place`` the place among all, ascending, or -1;
    ``worst_chance``: what the worst of as many speakers discloses by chance, ``worst_p``: how often
    it is as much; ``is_worst_typical``: whether half of all speakers disclose half as much.
    ``reasons``: sentences that explain the level.
    """

    level: Level
    verdict: str
    risks: tuple[Risk, ...] = ()
    disclosure: float = math.nan
    disclosure_low: float = math.nan
    disclosure_high: float = math.nan
    disclosure_conversation: float = math.nan
    disclosure_conversation_low: float = math.nan
    disclosure_conversation_high: float = math.nan
    conversation_utterances: float = math.nan
    found_in_100: float = math.nan
    found_in_100_low: float = math.nan
    found_in_100_high: float = math.nan
    condition: str = ""
    attack: str = ""
    needs: str = ""
    encoder: str = ""
    worst_speaker: str | None = None
    worst_place: int = -1
    worst_disclosure: float = math.nan
    worst_chance: float = math.nan
    worst_p: float = math.nan
    is_worst_typical: bool = False
    reasons: tuple[str, ...] = ()

    @property
    def low(self) -> float:
        """Lower end of the interval of the disclosure."""
        return self.disclosure_low

    @property
    def high(self) -> float:
        """Upper end of the interval of the disclosure."""
        return self.disclosure_high

    @property
    def is_speaker_exposed(self) -> bool:
        """Whether one speaker discloses more than luck gives the worst of all.

        By luck alone this is True in one of 20 evaluations at most.
        """
        return self.worst_p <= MOST_LUCK

    def __str__(self) -> str:
        """Return the verdict and its reasons."""
        return " ".join([self.verdict, *self.reasons])


# p-value up to which the worst speaker is named: by chance in at most one of 20 private systems. A
# stricter limit would name fewer by luck, and overlook more who are exposed.
MOST_LUCK = 0.05
_MOST_AS_ONE_IN_N = 0.55  # above it, 1 in N is too coarse
_LEAST_AS_N_IN_100 = 0.95  # from it on, N in 10 would say ten of ten


def show_bits(value: float) -> str:
    """Return a disclosure as text."""
    if math.isnan(value):
        return DASH
    return f"{scalar('disclosure').show(value)} bit"


def show_share(value: float) -> str:
    """Return a share as a percentage, with a decimal below ten."""
    if math.isnan(value):
        return DASH
    percent = 100 * value
    if percent >= 9.95:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %"


def show_risk(risk: Risk, value: float) -> str:
    """Return a value of a risk as text, in its unit."""
    if risk.is_in_bits:
        return show_bits(value)
    return show_share(value)


def show_interval(risk: Risk) -> str:
    """Return the 95 % interval of a risk as text; nothing where it has none."""
    if math.isnan(risk.low):
        return ""
    show = show_share
    if risk.is_in_bits:
        show = scalar("disclosure").show
    return f"[{show(risk.low)}, {show(risk.high)}]"


def describe_exposed_speaker(headline: Headline) -> str:
    """Return a sentence on the speaker who is protected worst."""
    if headline.is_worst_typical:
        finding = "is protected worst"
    else:
        finding = "is exposed"
    what = f"Speaker {headline.worst_speaker} {finding}: {show_bits(headline.worst_disclosure)}"
    chance = show_bits(headline.worst_chance)
    return (
        f"{what}, where the worst of as many speakers reaches {chance} by chance (p ="
        f" {headline.worst_p:.2f})."
    )


def describe_utterances(number: int) -> str:
    """Return how much speech of one person the attacker has, in words."""
    if number == 1:
        return "one utterance"
    return f"{number} utterances of one person"


def describe_share(share: float) -> str:
    """Return how often something happens as people say it: ``1 in 9 tries``, ``6 in 10 tries``."""
    if share >= 1:
        return "every try"
    if share >= _LEAST_AS_N_IN_100:
        return f"{round(100 * share)} in 100 tries"
    if share >= _MOST_AS_ONE_IN_N:
        return f"{round(10 * share)} in 10 tries"
    if share <= 0:
        return "no try"
    return f"1 in {round(1 / share):,} tries"


def describe_chance(risk: Risk) -> str:
    """Return what chance alone would give, in words."""
    if math.isnan(risk.chance):
        return "what chance gives is not known"
    if risk.value <= risk.chance:
        return "no more than chance would give"
    chance = show_risk(risk, risk.chance)
    is_within_chance = not math.isnan(risk.low_corrected) and not risk.is_shown
    if is_within_chance:
        return f"not told apart from chance, {chance}"
    return f"chance gives {chance}"
