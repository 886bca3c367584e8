"""Every number of a report, once: key, heading, unit, where privacy lies, and what it tells.

The keys of the suite, what a budget may limit, headings of tables, the text of the report, the schema of its JSON and
the axes of figures all come from here. A new number is one line of ``FAMILIES``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from vpmetrics._scores.measures import TAG_BOUNDS, TAG_LETTERS
from vpmetrics._trials.conditions import ALWAYS

DASH = "–"  # of a value that is not defined or not known


class Unit(NamedTuple):
    """What a number is measured in, and how people read it."""

    name: str
    spec: str
    scale: float = 1.0

    def show(self, value: float) -> str:
        """A value as text, with a true minus, and zero without a sign."""
        if math.isnan(value):
            return DASH
        text = format(self.scale * value, self.spec)
        # What three decimals would hide is shown as a power of ten, unless it is but rounding.
        if self.spec == ".3f" and 1e-9 < abs(value) < 0.0005:
            text = f"{value:.0e}"
        if not text.strip("-+0."):
            return text.lstrip("-+")
        return text.replace("-", "−")


class _Tag(Unit):
    """A category, kept as a number and read as a letter."""

    def show(self, value: float) -> str:
        return TAG_LETTERS[int(value)] if value >= 0 else "?"


class _Speaker(Unit):
    """A speaker, kept as a place among all, which whoever knows the names reads as a name."""

    def show(self, value: float) -> str:
        return DASH if math.isnan(value) else str(int(value)).replace("-", "−")


BITS, PERCENT, DECIBELS = Unit("bit", ".3f"), Unit("%", ".2f", 100.0), Unit("dB", "+.2f")
TENS, PLAIN, COUNT, TAG = Unit("log10", ".2f"), Unit("", ".3f"), Unit("", ".0f"), _Tag("", "")
SPEAKER = _Speaker("", "")


@dataclass(frozen=True)
class Scalar:
    """A number as people read it. ``private`` says where privacy lies: ``"low"``, ``"high"``, or None for neither."""

    key: str
    heading: str
    unit: Unit
    private: str | None
    tells: str
    family: str = ""
    condition: str = ""
    range: tuple[float, float] = (-math.inf, math.inf)

    @property
    def has_interval(self) -> bool:
        """Whether leaving speakers out says how sure it is.

        Not of extremes, of chance, of single speakers and names, nor where sets of people would be drawn anew.
        """
        key = self.key.removeprefix(_prefix(self))
        if self.family in OF_CROWDS:
            return key.startswith("rate_")
        return self.family != "speaker" and key not in _UNSURE

    def range_among(self, speakers: int) -> tuple[float, float]:
        """The range where there are so many speakers: of nobody more can be told than who it is."""
        lowest, highest = self.range
        tells_who = self.key.removeprefix(_prefix(self)) in ("max_d", "mean_d", "alid")
        return lowest, math.log2(speakers) if tells_who and speakers else highest

    @property
    def title(self) -> str:
        """Heading and unit."""
        return f"{self.heading} [{self.unit.name}]" if self.unit.name else self.heading

    def show(self, value: float) -> str:
        """A value of it as text."""
        return self.unit.show(value)


# Extremes of what was seen, which say little of what was not; means that turn with a slope that is fitted; names.
_UNSURE = {
    *("l_w", "tag", "rank_spread", "mean_d_chance", "lid_pos", "lid_neg", "lid_max", "strongest", "d_ece_chance"),
}
ENDS = ("_low", "_high")  # of the names of an interval's ends
_FULL, _NO_END = 1 / (2 * math.log(2)), math.inf
_RANGES = {
    **dict.fromkeys(("d_ece", "d_ece_reversed", "d_ece_strongest"), (0.0, _FULL)),
    **dict.fromkeys(("eer", "eer_strongest"), (0.0, 0.5)),
    **dict.fromkeys(("raw_eer", "min_cllr", "min_dcf", "linkability"), (0.0, 1.0)),
    **dict.fromkeys(("id_rate", "link_rate", "pdr", "ndr", "rate", "rate_strongest"), (0.0, 1.0)),
    **dict.fromkeys(("cllr", "d_diag", "max_d", "mean_d"), (0.0, _NO_END)),
    "deid": (-_NO_END, 1.0),
}


def _prefix(entry: Scalar) -> str:
    return key_of(entry.condition, "") if entry.condition else ""


_LETTERS = ", ".join(f"{letter} from {bound:g}" for letter, bound in zip(TAG_LETTERS[2:], TAG_BOUNDS, strict=True))

_TABLE = {
    "system": (
        Scalar("deid", "DeID", PERCENT, "high", "de-identification: how much of what tells the original voices apart "
               "is gone between original and protected speech; 0 is nothing, 100 hides everybody"),
        Scalar("gvd", "G_VD", DECIBELS, None, "gain of voice distinctiveness: how distinct protected voices are from "
               "each other, relative to the original ones; 0 is as distinct as before"),
    ),
    "score": (
        Scalar("d_ece", "D_ECE", BITS, "low", "expected disclosure: what the scores tell an attacker on average over "
               "all priors; 0 is perfect privacy, 0.721 full disclosure"),
        Scalar("d_ece_reversed", "D_ECE reversed", BITS, "low", "the same for an attacker who turns the sign of the "
               "scores; clearly above 0, the protection can be undone that way"),
        Scalar("l_w", "l_w", TENS, "low", "worst case: the strongest evidence a single trial gives, as a power of ten "
               "of the odds; grows with the number of trials"),
        Scalar("tag", "tag", TAG, "low", f"category of the worst case: 0 is perfect privacy, A below 1, {_LETTERS}"),
        Scalar("min_cllr", "min Cllr", BITS, "high", "cost of the best-calibrated scores; 1 is perfect privacy"),
        Scalar("cllr", "Cllr", BITS, "high", "cost of taking the scores for log-likelihood ratios as they stand"),
        Scalar("eer", "EER", PERCENT, "high", "error rate where misses and false alarms are equal, on the convex hull "
               "of the ROC; 50 is perfect privacy"),
        Scalar("raw_eer", "raw EER", PERCENT, "high", "the same where the two rates of the scores as they are cross, "
               "as the challenges rank; never below the EER of the hull"),
        Scalar("min_dcf", "min DCF", PLAIN, "high", "least cost of detection at a prior of 0.01; 1 is perfect privacy"),
        Scalar("linkability", "linkability", PLAIN, "low", "share of what can be linked, by score (Gómez-Barrero); 0 "
               "is perfect privacy"),
    ),
    "matrix": (
        Scalar("d_diag", "D_diag", PLAIN, "low", "by how much the diagonal of the similarity matrix stands out"),
        Scalar("d_diag_log", "D_diag, log", BITS, "low", "the same for the logarithm of the similarities"),
    ),
    "rank": (
        Scalar("max_d", "MaxD", BITS, "low", "similarity rank disclosure at the rank that discloses most"),
        Scalar("mean_d", "MeanD", BITS, "low", "similarity rank disclosure on average; perfect privacy is the level "
               "of chance, not 0"),
        Scalar("mean_d_chance", "MeanD by chance", BITS, None, "the MeanD that as many inputs would show, each by "
               "itself, if they disclosed nothing; inputs of a speaker that err alike show more"),
        Scalar("id_rate", "identified", PERCENT, "low", "share of utterances whose own speaker is the most similar "
               "one"),
        Scalar("rank_spread", "rank spread", PERCENT, None, "share of the ranks that are likelier than by chance"),
    ),
    "local": (
        Scalar("alid", "ALID", BITS, "low", "local information disclosure on average over trials; below 0 scores "
               "mislead"),
        Scalar("pdr", "PDR", PERCENT, "low", "share of trials that disclose anything about their speaker"),
        Scalar("ndr", "NDR", PERCENT, "high", "share of trials that disclose nothing about their speaker"),
        Scalar("lid_pos", "LID+", BITS, "low", "mean of the trials that disclose"),
        Scalar("lid_neg", "LID−", BITS, None, "mean of the trials that do not"),
        Scalar("lid_max", "largest LID", BITS, "low", "local information disclosure of the trial that discloses most"),
        Scalar("link_rate", "linked", PERCENT, "low", "share of trials whose own speaker strictly beats all others"),
    ),
    "speaker": (
        Scalar("worst_speaker_d_ece", "worst speaker's D_ECE", BITS, "low", "expected disclosure of the speaker looked "
               "for whom it is largest for, by the calibration of all; too large by what is noise in many values"),
        Scalar("worst_speaker", "worst speaker", SPEAKER, None, "who that is, as a place among all in "
               "ascending order"),
        Scalar("speaker_d_ece_spread", "spread of D_ECE", BITS, None, "standard deviation over speakers of the "
               "expected disclosure of each"),
        Scalar("worst_speaker_mean_d", "worst speaker's MeanD", BITS, "low", "largest mean over a speaker's utterances "
               "of what their ranks disclose"),
        Scalar("worst_speaker_alid", "worst speaker's ALID", BITS, "low", "largest mean over a speaker's trials of the "
               "local information disclosure"),
    ),
    "attack": (
        Scalar("d_ece_strongest", "strongest D_ECE", BITS, "low", "expected disclosure, in either direction, to the "
               "strongest of the attacks tried, on speakers it was not chosen on"),
        Scalar("eer_strongest", "strongest EER", PERCENT, "high", "equal error rate of that attack"),
        Scalar("strongest", "strongest attack", COUNT, None, "the number of that attack among those tried"),
        Scalar("d_ece_chance", "D_ECE by chance", BITS, None, "what the same choice finds where speakers are permuted "
               "and nothing is disclosed"),
    ),
    "crowd": (
        Scalar("rate", "found among {}", PERCENT, "low", "share of conversations whose speaker is the most similar of "
               "so many people; ≈ where they are more than the references, and it is extrapolated"),
        Scalar("chance", "found among {} by chance", PERCENT, None, "one in so many"),
        Scalar("singling_out", "singled out of {}", PERCENT, "low", "share of the attacker's predicates that fire on "
               "exactly one of so many people; by chance 36.8 at most"),
        Scalar("gallery", "references", COUNT, None, "how many people somebody is looked for among"),
    ),
    "attacked_crowd": (
        Scalar("rate_strongest", "found among {} after the strongest attack", PERCENT, "low", "the same after the "
               "attack chosen for each fold of speakers, fitted on all others; ≈ where they are more than the people "
               "of a fold, and it is extrapolated"),
        Scalar("singling_out_strongest", "singled out of {} after the strongest attack", PERCENT, "low", "the same "
               "after that attack, fitted on people who are not among them, the fewer the more are asked for; of more "
               "than half of all it is not known"),
        Scalar("gallery_strongest", "references after the strongest attack", COUNT, None, "how many people somebody is "
               "looked for among after that attack: those of a fold"),
    ),
    "relative": (
        Scalar("d_ece_op_oo", "D_ECE (OP/OO)", PERCENT, "high", "de-identification by expected disclosure; compare "
               "DeID"),
        Scalar("cllr_op_oo", "min Cllr (OP/OO)", PERCENT, "high", "de-identification by minimum Cllr; compare DeID"),
        Scalar("g_d_ece", "G by D_ECE", DECIBELS, None, "gain of distinctiveness by expected disclosure; compare "
               "G_VD"),
        Scalar("g_cllr", "G by min Cllr", DECIBELS, None, "gain of distinctiveness by minimum Cllr; compare G_VD"),
    ),
    "calibration": (
        Scalar("c_ece", "C_ECE", BITS, "low", "disclosure to an attacker who learnt a linear calibration on other "
               "sessions; 0 is good, below 0 guessing would do better"),
        Scalar("c_ece_linear", "C_ECE, linear", BITS, "low", "disclosure to an attacker who learnt a linear "
               "calibration on another run; 0 is good, below 0 guessing would do better"),
        Scalar("c_ece_isotonic", "C_ECE, isotonic", BITS, "low", "the same with an isotonic calibration"),
        Scalar("cllr_linear", "Cllr, linear", BITS, "high", "cost of the scores under that linear calibration"),
        Scalar("cllr_isotonic", "Cllr, isotonic", BITS, "high", "cost of the scores under that isotonic calibration"),
    ),
}  # fmt: skip
FAMILIES = {
    family: tuple(replace(entry, family=family, range=_RANGES.get(entry.key, (-_NO_END, _NO_END))) for entry in entries)
    for family, entries in _TABLE.items()
}
OF_CROWDS = ("crowd", "attacked_crowd")
OF_CONDITIONS = ("score", "matrix", "rank", "local", "speaker")
_COMPARED = {  # what compares conditions is calculated from these of a family
    "deid": ("matrix", ("OO", "OP")),
    "gvd": ("matrix", ("OO", "PP")),
    **{entry.key: ("score", ALWAYS) for entry in FAMILIES["relative"]},
}
_BY_KEY = {entry.key: entry for entries in FAMILIES.values() for entry in entries}
_OF_PEOPLE = re.compile(r"(rate|chance|singling_out)_([1-9]\d*)(_strongest)?(_error)?")

HEADINGS = {
    "OO": "original against original: how well speakers can be told apart before protection",
    "OP": "original against protected: an attacker who has recordings of known speakers and looks for them",
    "PP": "protected against protected: an attacker who protects what they know of speakers in the same way first",
    "within": "protected against protected of the same session: voices of one draw, which may stay distinct",
    "across": "protected against protected of another session: whether two draws can be linked",
}


def key_of(condition: str, key: str) -> str:
    """Name of a scalar of a condition; a nameless condition adds nothing to it."""
    return f"{condition.lower()}_{key}" if condition else key


def scalar(key: str) -> Scalar:
    """What is known of a number by its name: ``deid``, ``d_ece``, ``op_d_ece``, ``op_d_ece_low``.

    Example:
        >>> scalar("op_eer").title, scalar("op_eer").private, scalar("op_eer").show(0.125)
        ('EER [%]', 'high', '12.50')
    """
    if (known := _entry(key)) is not None:
        return known
    for end, name in zip(ENDS, ("from", "to"), strict=True):
        if key.endswith(end):
            inner = scalar(key.removesuffix(end))
            return replace(inner, key=key, heading=f"{inner.heading} {name}")
    prefix, _, rest = key.partition("_")
    for condition in HEADINGS:
        known = _entry(rest) if prefix == condition.lower() else None
        if known is not None and known.family not in ("system", "relative"):
            return replace(known, key=key, condition=condition)
    raise KeyError(key)


def _entry(key: str) -> Scalar | None:
    """The line of the table for a name without a condition; of so many people, with their number in its heading."""
    found = _OF_PEOPLE.fullmatch(key)
    if found is None:
        entry = _BY_KEY.get(key)
        return None if entry is None or "{}" in entry.heading else entry
    kind, people, attacked, error = found.groups(default="")
    known = _BY_KEY.get(kind + attacked)
    if known is None or (error and kind != "singling_out"):
        return None
    entry = replace(known, key=key, heading=known.heading.format(f"{int(people):,}"))
    if not error:
        return entry
    return replace(entry, heading=f"{entry.heading}, error", private=None, tells="standard error of drawing so many")


def origins_of(names: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Pairs of a condition and a family that these scalars are calculated from.

    Example:
        >>> sorted(origins_of(["deid", "pp_eer"]))
        [('OO', 'matrix'), ('OP', 'matrix'), ('PP', 'score')]
    """
    found: set[tuple[str, str]] = set()
    for entry in map(scalar, names):
        family, conditions = _COMPARED.get(entry.key, (entry.family, (entry.condition,)))
        found.update((condition, family) for condition in conditions)
    return frozenset(found)


def names_with_ends(names: Iterable[str]) -> Iterator[str]:
    """Names of scalars, each that has an interval followed by those of its ends.

    Example:
        >>> list(names_with_ends(["deid", "op_l_w"]))
        ['deid', 'deid_low', 'deid_high', 'op_l_w']
    """
    for name in names:
        yield name
        yield from (f"{name}{end}" for end in ENDS if scalar(name).has_interval)


def entries_of_crowd(names: Iterable[str]) -> tuple[Scalar, ...]:
    """The numbers of a crowd among names, without their conditions, each once.

    Example:
        >>> [entry.key for entry in entries_of_crowd(["op_rate_20", "op_eer", "pp_rate_20", "op_gallery"])]
        ['rate_20', 'gallery']
    """
    known = [scalar(name) for name in names]
    keys = {
        entry.key.removeprefix(f"{entry.condition.lower()}_"): entry for entry in known if entry.family in OF_CROWDS
    }
    sizes = dict.fromkeys(int(found[2]) for key in keys if (found := _OF_PEOPLE.fullmatch(key)))
    return tuple(scalar(key) for key in _names_of_crowd("OP", tuple(sizes), attacks=True) if key in keys)


def gallery_of(name: str) -> tuple[str, int] | None:
    """The number of references that a rate is counted among, by name, and of the people it tells of; None of others.

    Example:
        >>> gallery_of("op_rate_20_strongest"), gallery_of("op_eer")
        (('op_gallery_strongest', 20), None)
    """
    known = scalar(name)
    found = re.search(r"rate_(\d+)(_strongest)?$", name) if known.family in OF_CROWDS else None
    return None if found is None else (key_of(known.condition, f"gallery{found[2] or ''}"), int(found[1]))


def scalars_of(
    conditions: Sequence[str] = ALWAYS, attacks: bool = False, sessions: bool = False, sizes: Sequence[int] = ()
) -> tuple[str, ...]:
    """Names of all scalars of some conditions in the order of a report, as the suite returns them.

    ``sizes`` are the numbers of people somebody is looked for among.

    Example:
        >>> scalars_of(("OP",))[2:5]
        ('op_d_ece', 'op_d_ece_reversed', 'op_l_w')
    """
    return tuple(_names(conditions, attacks, sessions, sizes))


def _names(conditions: Sequence[str], attacks: bool, sessions: bool, sizes: Sequence[int]) -> Iterator[str]:
    yield from (entry.key for entry in FAMILIES["system"])
    for condition in conditions:
        # Original speech has nobody to undo its protection.
        families = (*OF_CONDITIONS, "attack") if attacks and condition != "OO" else OF_CONDITIONS
        yield from (key_of(condition, entry.key) for family in families for entry in FAMILIES[family])
        if sessions and condition == "OP":
            yield key_of(condition, "c_ece")
        if sizes:
            yield from (key_of(condition, name) for name in _names_of_crowd(condition, sizes, attacks))
    if set(ALWAYS) <= set(conditions):
        yield from (entry.key for entry in FAMILIES["relative"])


def _names_of_crowd(condition: str, sizes: Sequence[int], attacks: bool) -> Iterator[str]:
    # The number of a weak attacker never stands alone; original speech has nobody to undo its protection.
    of_attackers = (str, of_strongest) if attacks and condition != "OO" else (str,)
    yield from (named(f"rate_{size}") for size in sizes for named in of_attackers)
    if condition in ALWAYS:  # conversations of several sessions cannot calibrate each other
        ends = ("", "_error")
        yield from (named(f"singling_out_{size}{end}") for size in sizes for named in of_attackers for end in ends)
    yield from (named("gallery") for named in of_attackers)


def of_strongest(key: str) -> str:
    """Name of the same number after the strongest attack.

    Example:
        >>> of_strongest("rate_20"), of_strongest("singling_out_20_error")
        ('rate_20_strongest', 'singling_out_20_strongest_error')
    """
    plain = key.removesuffix("_error")
    return f"{plain}_strongest{key[len(plain) :]}"
