"""The registry of scalars.

Every number of a report once, with key, heading, unit, direction, description and range.

The keys of the suite, what a budget may limit, headings of tables, the JSON schema and the axes of
figures come from here. A score measure is added in :mod:`vpmetrics._scores.measures`, any other
number in ``_TABLE``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from vpmetrics._scores.measures import SCORE_MEASURES
from vpmetrics._util.scalar import (
    BITS,
    CI_SUFFIXES,
    COUNT,
    DASH,
    DECIBELS,
    FULL_DISCLOSURE,
    PERCENT,
    PLAIN,
    SPEAKER,
    TAG,
    Scalar,
    Unit,
    closest_or_known_names,
)
from vpmetrics._utterances.conditions import WITHOUT_SESSIONS

__all__ = [
    "CI_SUFFIXES",
    "CONDITION_TITLES",
    "DASH",
    "FAMILIES",
    "SPEAKER",
    "TAG",
    "Scalar",
    "Unit",
    "scalar",
]

CONDITION_TITLES = {
    "OO": "original against original: how well speakers are separated without protection",
    "OP": (
        "original against protected: an attacker who enrols original recordings and tests protected"
        " ones"
    ),
    "PP": (
        "protected against protected: an attacker who protects their enrolment recordings in the"
        " same way"
    ),
    "within": (
        "protected against protected, one session: voices of one draw of the secret, which may stay"
        " distinct"
    ),
    "across": (
        "protected against protected, another session: whether two draws of the secret can be"
        " linked"
    ),
}

_DISCLOSURE = (0.0, FULL_DISCLOSURE)
_SHARE = (0.0, 1.0)
_NO_END = math.inf
# an extreme, a chance level, a single speaker or a count
_Level = partial(Scalar, has_interval=False)

_TABLE: dict[str, tuple[Scalar, ...]] = {
    "headline": (
        Scalar(
            "disclosure",
            "disclosure",
            BITS,
            "low",
            "the largest disclosure to any attacker tried: the strongest attack on OP, and on PP"
            " (with sessions: across); 0 is perfect privacy, 0.721 full disclosure",
            _DISCLOSURE,
        ),
        Scalar(
            "disclosure_conversation",
            "disclosure of a conversation",
            BITS,
            "low",
            "the same from several "
            "utterances of one person together, as many as conversation_utterances says",
            _DISCLOSURE,
            needs_many_trials=True,
            is_saturating=True,
        ),
        _Level(
            "conversation_utterances",
            "utterances of a conversation",
            COUNT,
            None,
            "how many utterances of one "
            "person the attacker averages; undefined where too few speakers have two conversations",
        ),
        Scalar(
            "found_in_100",
            "beats 99 random others",
            PERCENT,
            "low",
            "how often the attacker finds the right one "
            "of 100 people by one utterance, the others drawn at random; 1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
            is_saturating=True,
        ),
        Scalar(
            "found_in_100_conversation",
            "conversation beats 99 random others",
            PERCENT,
            "low",
            "the same by a conversation; 1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
            is_saturating=True,
        ),
        _Level(
            "worst_speaker_disclosure",
            "worst speaker",
            BITS,
            "low",
            "the largest disclosure of one speaker's own trials, in either direction, calibrated on"
            " these alone, after the attack; compare its chance level",
            _DISCLOSURE,
        ),
        _Level(
            "worst_speaker_chance",
            "worst speaker by chance",
            BITS,
            None,
            "what the largest of as many speakers reaches with speakers permuted",
            _DISCLOSURE,
        ),
        _Level(
            "worst_speaker_p",
            "p of the worst speaker",
            PLAIN,
            None,
            "how often the largest of as many speakers "
            "reaches as much by chance; up to 0.05 the speaker is named",
            _SHARE,
        ),
    ),
    "system": (
        Scalar(
            "deid",
            "DeID",
            PERCENT,
            "high",
            "de-identification: how much of the diagonal dominance of the original voices is gone"
            " between original and protected speech; 0 is nothing, 100 hides all speakers",
            (-_NO_END, 1.0),
        ),
        Scalar(
            "gvd",
            "G_VD",
            DECIBELS,
            None,
            "gain of voice distinctiveness: how distinct protected voices are from "
            "each other, relative to the original ones; 0 is as distinct as before",
        ),
    ),
    "score": tuple(SCORE_MEASURES.values()),
    "chance": (
        _Level(
            "linkability_chance",
            "linkability by chance",
            PLAIN,
            None,
            "linkability with speakers permuted: what perfect privacy reads",
            _SHARE,
        ),
    ),
    "matrix": (
        Scalar(
            "d_diag",
            "D_diag",
            PLAIN,
            "low",
            "by how much the diagonal of the similarity matrix stands out",
            (0.0, _NO_END),
        ),
        Scalar(
            "d_diag_log",
            "D_diag, log",
            BITS,
            "low",
            "the same for the logarithm of the similarities",
        ),
    ),
    "rank": (
        Scalar(
            "max_d",
            "MaxD",
            BITS,
            "low",
            "similarity rank disclosure at the rank that discloses most",
            (0.0, _NO_END),
            is_limited_by_speakers=True,
        ),
        Scalar(
            "mean_d",
            "MeanD",
            BITS,
            "low",
            "similarity rank disclosure on average; perfect privacy is its chance level, not 0",
            (0.0, _NO_END),
            is_limited_by_speakers=True,
        ),
        _Level(
            "mean_d_chance",
            "MeanD by chance",
            BITS,
            None,
            "MeanD with speakers permuted, inputs of one speaker "
            "together: what perfect privacy reads",
        ),
        Scalar(
            "id_rate",
            "identified",
            PERCENT,
            "low",
            "share of utterances whose own speaker is the most similar one",
            _SHARE,
        ),
        _Level(
            "rank_spread",
            "rank spread",
            PERCENT,
            None,
            "share of the ranks that are likelier than by chance",
        ),
    ),
    "local": (
        Scalar(
            "alid",
            "ALID",
            BITS,
            "low",
            "local information disclosure on average over trials; below 0 scores mislead",
            is_limited_by_speakers=True,
        ),
        _Level("alid_chance", "ALID by chance", BITS, None, "ALID with speakers permuted"),
        Scalar(
            "pdr",
            "PDR",
            PERCENT,
            "low",
            "share of trials that disclose anything about their speaker",
            _SHARE,
        ),
        Scalar(
            "ndr",
            "NDR",
            PERCENT,
            "high",
            "share of trials that disclose nothing about their speaker",
            _SHARE,
        ),
        _Level("lid_pos", "LID+", BITS, "low", "mean of the trials that disclose"),
        _Level("lid_neg", "LID−", BITS, None, "mean of the trials that do not"),
        _Level(
            "lid_max",
            "largest LID",
            BITS,
            "low",
            "local information disclosure of the trial that discloses most",
        ),
        Scalar(
            "link_rate",
            "linked",
            PERCENT,
            "low",
            "share of trials whose own speaker strictly beats all others",
            _SHARE,
        ),
    ),
    "speaker": (
        _Level(
            "worst_speaker_d_ece",
            "worst speaker's D_ECE",
            BITS,
            "low",
            "largest expected disclosure of a tested "
            "speaker, by the calibration of all trials; the largest of many noisy numbers",
        ),
        _Level(
            "worst_speaker",
            "worst speaker's index",
            SPEAKER,
            None,
            "place of that speaker among all, ascending",
        ),
        _Level(
            "speaker_d_ece_spread",
            "spread of D_ECE",
            BITS,
            None,
            "standard deviation over speakers of the expected disclosure of each",
        ),
        _Level(
            "worst_speaker_mean_d",
            "worst speaker's MeanD",
            BITS,
            "low",
            "largest mean over a speaker's utterances of what their ranks disclose",
        ),
        _Level(
            "worst_speaker_alid",
            "worst speaker's ALID",
            BITS,
            "low",
            "largest mean over a speaker's trials of the local information disclosure",
        ),
    ),
    "attack": (
        Scalar(
            "d_ece_strongest",
            "strongest D_ECE",
            BITS,
            "low",
            "expected disclosure to all attacks fused, fitted and weighed on other speakers; never"
            " below plain comparison in either direction",
            _DISCLOSURE,
        ),
        Scalar(
            "eer_strongest",
            "strongest EER",
            PERCENT,
            "high",
            "equal error rate of the fused attacker",
            (0.0, 0.5),
        ),
        Scalar(
            "tpr_at_1e-2_strongest",
            "strongest TPR at FPR 1 %",
            PERCENT,
            "low",
            "share of target trials that the fused attacker finds at a threshold that 1 % of"
            " non-target trials exceed; 1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
        ),
        Scalar(
            "tpr_at_1e-3_strongest",
            "strongest TPR at FPR 0.1 %",
            PERCENT,
            "low",
            "the same for 0.1 % of the non-target trials; 0.1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
        ),
        _Level(
            "d_ece_chance",
            "D_ECE by chance",
            BITS,
            None,
            "what the fused attacker finds with speakers permuted",
        ),
        _Level(
            "attack_speakers",
            "speakers fitted on",
            COUNT,
            None,
            "how many speakers each attack was fitted on; attacks find more with more of them",
        ),
        _Level(
            "d_ece_nothing",
            "D_ECE, needs nothing",
            BITS,
            "low",
            "expected disclosure to a fused attacker who has nothing but the two utterances",
        ),
        _Level(
            "d_ece_protected",
            "D_ECE, needs protected speech",
            BITS,
            "low",
            "the same to one who has protected speech of other speakers",
        ),
        _Level(
            "d_ece_labelled",
            "D_ECE, needs speakers",
            BITS,
            "low",
            "the same to one who also knows which of that speech is of one speaker",
        ),
        _Level(
            "d_ece_pairs",
            "D_ECE, needs pairs",
            BITS,
            "low",
            "the same to one who also has the original speech, that is, the anonymiser",
        ),
    ),
    "found": (
        Scalar(
            "found_in_100",
            "beats 99 random others",
            PERCENT,
            "low",
            "how often the attacker finds the right one "
            "of 100 people by one utterance, the others drawn at random; 1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
            is_saturating=True,
        ),
    ),
    "conversation": (
        Scalar(
            "d_ece_conversation",
            "D_ECE of a conversation",
            BITS,
            "low",
            "expected disclosure of several "
            "utterances of one person together, to the same attackers",
            _DISCLOSURE,
            needs_many_trials=True,
            is_saturating=True,
        ),
        _Level(
            "d_ece_conversation_chance",
            "D_ECE of a conversation by chance",
            BITS,
            None,
            "the same with speakers permuted",
        ),
        Scalar(
            "found_in_100_conversation",
            "conversation beats 99 random others",
            PERCENT,
            "low",
            "how often the "
            "attacker finds the right one of 100 people by a conversation; 1 is perfect privacy",
            _SHARE,
            needs_many_trials=True,
            is_saturating=True,
        ),
    ),
    "attack_limit": (
        _Level(
            "attack_limit",
            "D_ECE, many speakers",
            BITS,
            "low",
            "what the fused attacker would learn if attacks were fitted on very many speakers, from"
            " half and all of those there are; undefined below 32",
        ),
    ),
    "population": (
        Scalar(
            "rate",
            "found among {}",
            PERCENT,
            "low",
            "share of conversations whose speaker is the most similar of "
            "N people; ≈ where N exceeds the number of references, and the rate is extrapolated",
            _SHARE,
        ),
        _Level("chance", "found among {} by chance", PERCENT, None, "one in N"),
        _Level(
            "singling_out",
            "singled out of {}",
            PERCENT,
            "low",
            "share of the attacker's predicates that fire on "
            "exactly one of N people; by chance 36.8 at most",
        ),
        _Level("gallery", "references", COUNT, None, "how many people a probe is searched among"),
    ),
    "attacked_population": (
        Scalar(
            "rate_strongest",
            "found among {} after the strongest attack",
            PERCENT,
            "low",
            "the same by the fused attacker, among the people of a fold of speakers",
            _SHARE,
        ),
        _Level(
            "gallery_strongest",
            "references after the strongest attack",
            COUNT,
            None,
            "how many people a probe is searched among after that attack: those of a fold",
        ),
    ),
    "relative": (
        Scalar(
            "d_ece_op_oo",
            "D_ECE (OP/OO)",
            PERCENT,
            "high",
            "de-identification by expected disclosure; compare DeID",
            (-_NO_END, 1.0),
        ),
        Scalar(
            "cllr_op_oo",
            "min Cllr (OP/OO)",
            PERCENT,
            "high",
            "de-identification by minimum Cllr; compare DeID",
            (-_NO_END, 1.0),
        ),
        Scalar(
            "g_d_ece",
            "G by D_ECE",
            DECIBELS,
            None,
            "gain of distinctiveness by expected disclosure; compare G_VD",
        ),
        Scalar(
            "g_cllr",
            "G by min Cllr",
            DECIBELS,
            None,
            "gain of distinctiveness by minimum Cllr; compare G_VD",
        ),
    ),
    "calibration": (
        Scalar(
            "c_ece",
            "C_ECE",
            BITS,
            "low",
            "disclosure to an attacker with a linear calibration learnt on other "
            "sessions; 0 is good, below 0 guessing would do better",
        ),
        Scalar(
            "c_ece_linear",
            "C_ECE, linear",
            BITS,
            "low",
            "disclosure to an attacker with a linear calibration "
            "learnt on another run; 0 is good, below 0 guessing would do better",
        ),
        Scalar(
            "c_ece_isotonic",
            "C_ECE, isotonic",
            BITS,
            "low",
            "the same with an isotonic calibration",
        ),
        Scalar(
            "cllr_linear",
            "Cllr, linear",
            BITS,
            "high",
            "cost of the scores under that linear calibration",
        ),
        Scalar(
            "cllr_isotonic",
            "Cllr, isotonic",
            BITS,
            "high",
            "cost of the scores under that isotonic calibration",
        ),
    ),
}
FAMILIES: dict[str, tuple[Scalar, ...]] = {}
for _family, _entries in _TABLE.items():
    FAMILIES[_family] = tuple(replace(entry, family=_family) for entry in _entries)
OF_POPULATION = ("population", "attacked_population")
OF_SYSTEM = ("headline", "system", "relative")
OF_CONDITION = ("score", "chance", "matrix", "rank", "local", "speaker")
OF_RISKS = ("found", "conversation")  # of conditions in which speakers should be hidden
_REQUIRED: dict[
    str, tuple[tuple[str, str], ...]
] = {  # families that numbers of the whole system are computed from
    "deid": (("OO", "matrix"), ("OP", "matrix")),
    "gvd": (("OO", "matrix"), ("PP", "matrix")),
}
_SCORES_WITHOUT_SESSIONS = tuple((name, "score") for name in WITHOUT_SESSIONS)
_REQUIRED |= dict.fromkeys((entry.key for entry in FAMILIES["relative"]), _SCORES_WITHOUT_SESSIONS)
# Families that the larger of OP and PP (with sessions: across) is computed from.
_REQUIRED_WHERE_HIDDEN = {
    "disclosure": "attack",
    "disclosure_conversation": "conversation",
    "conversation_utterances": "conversation",
    "found_in_100": "found",
    "found_in_100_conversation": "conversation",
    "worst_speaker_disclosure": "worst",
    "worst_speaker_chance": "worst",
    "worst_speaker_p": "worst",
}
_BY_KEY_OF_SYSTEM: dict[str, Scalar] = {}
_BY_KEY_OF_CONDITION: dict[str, Scalar] = {}
for _family, _entries in FAMILIES.items():
    if _family in OF_SYSTEM:
        _entry_by_key = _BY_KEY_OF_SYSTEM
    else:
        _entry_by_key = _BY_KEY_OF_CONDITION
    _entry_by_key.update({_entry.key: _entry for _entry in _entries})
_BY_KEY = _BY_KEY_OF_CONDITION | _BY_KEY_OF_SYSTEM
_OF_SIZE = re.compile(r"(rate|chance|singling_out)_([1-9]\d*)(_strongest)?(_error)?")
_HEADLINE_OF_SYSTEM = (
    "disclosure",
    "disclosure_conversation",
    "conversation_utterances",
    "found_in_100",
    "found_in_100_conversation",
    "deid",
    "gvd",
    "worst_speaker_disclosure",
    "worst_speaker_chance",
)
_HEADLINE_OF_CONDITION = (
    "d_ece",
    "d_ece_strongest",
    "d_ece_chance",
    "eer",
    "eer_strongest",
    "tpr_at_1e-3_strongest",
    "linkability",
    "mean_d",
    "id_rate",
)


def hidden_conditions(conditions: Iterable[str]) -> list[str]:
    """Return the conditions in which speakers should be hidden: OP, and PP or across; also unnamed.

    It is across where there are sessions.
    """
    names = list(conditions)
    protected = _hidden_protected_condition("across" in names)
    return [name for name in ("OP", protected, "") if name in names]


def _hidden_protected_condition(has_sessions: bool) -> str:
    """Return the condition in which protected speech should not link."""
    if has_sessions:
        return "across"
    return "PP"


def scalar_key(condition: str, key: str) -> str:
    """Return the key of a number of a condition; without a condition the key itself."""
    if not condition:
        return key
    return f"{condition.lower()}_{key}"


def scalar(key: str) -> Scalar:
    """Return what a key of :class:`vpmetrics.VoicePrivacy` means.

    Args:
        key: Such as ``deid``, ``d_ece``, ``op_d_ece`` or ``op_d_ece_low``.

    Returns:
        The entry of the registry: heading, unit, direction, description and range.

    Example:
        >>> scalar("op_eer").title, scalar("op_eer").direction, scalar("op_eer").show(0.125)
        ('EER [%]', 'high', '12.50')
    """
    if (entry := _find_entry_of_bare_key(key, _BY_KEY)) is not None:
        return entry
    for suffix, name in zip(CI_SUFFIXES, ("from", "to"), strict=True):
        if key.endswith(suffix):
            inner = scalar(key.removesuffix(suffix))
            return replace(inner, key=key, heading=f"{inner.heading} {name}")
    prefix, _, bare_key = key.partition("_")
    for condition in CONDITION_TITLES:
        if prefix == condition.lower():
            entry = _find_entry_of_bare_key(bare_key, _BY_KEY_OF_CONDITION)
            if entry is not None:
                return replace(entry, key=key, condition=condition)
    hint = closest_or_known_names(key, scalar_keys(tuple(CONDITION_TITLES), has_attacks=True))
    raise KeyError(f"Expected a key of VoicePrivacy, but got {key!r}. {hint}")


def _find_entry_of_bare_key(bare_key: str, entry_by_key: Mapping[str, Scalar]) -> Scalar | None:
    """Return the entry of a key without condition and ``_low`` or ``_high``.

    Its number of people is in the heading.
    """
    match = _OF_SIZE.fullmatch(bare_key)
    if match is None:
        entry = entry_by_key.get(bare_key)
        if entry is None or "{}" in entry.heading:
            return None
        return entry
    rate, size, strongest, error = match.groups(default="")
    entry = _BY_KEY.get(rate + strongest)
    if entry is None or (error and rate != "singling_out"):
        return None
    entry = replace(entry, key=bare_key, heading=entry.heading.format(f"{int(size):,}"))
    if not error:
        return entry
    return replace(
        entry,
        heading=f"{entry.heading}, error",
        direction=None,
        description="standard error of drawing",
    )


def utility_direction(name: str) -> str:
    """Return the direction in which a utility is good.

    ``low`` for error rates and losses, ``high`` for all others.

    Example:
        >>> utility_direction("WER"), utility_direction("UAR [%]")
        ('low', 'high')
    """
    if re.search(r"(?<![a-z])([a-z]er|mcd|rmse|loss|error)(?![a-z])", name.lower()):
        return "low"
    return "high"


def required_families(
    keys: Iterable[str], has_sessions: bool = False
) -> frozenset[tuple[str, str]]:
    """Return the pairs of condition and family that must be computed for these keys.

    Example:
        >>> sorted(required_families(["deid", "pp_eer"]))
        [('OO', 'matrix'), ('OP', 'matrix'), ('PP', 'score')]
    """
    pairs: set[tuple[str, str]] = set()
    for entry in map(scalar, keys):
        if entry.key in _REQUIRED_WHERE_HIDDEN:
            family = _REQUIRED_WHERE_HIDDEN[entry.key]
            pairs.add(("OP", family))
            pairs.add((_hidden_protected_condition(has_sessions), family))
        else:
            pairs.update(_REQUIRED.get(entry.key, ((entry.condition, entry.family),)))
    return frozenset(pairs)


def required_score_measures(keys: Iterable[str]) -> frozenset[str]:
    """Return the score measures that must be computed for these keys and for the checks.

    Example:
        >>> sorted(required_score_measures(["deid", "pp_linkability"]))
        ['d_ece', 'd_ece_reversed', 'eer', 'linkability']
    """
    required = {"d_ece", "d_ece_reversed", "eer"}
    for key in keys:
        entry = scalar(key)
        if entry.condition:
            required.add(entry.key.removeprefix(scalar_key(entry.condition, "")))
        if entry.family == "relative":
            required.add("min_cllr")
    return frozenset(required & set(SCORE_MEASURES))


def add_interval_keys(keys: Iterable[str]) -> Iterator[str]:
    """Yield keys; a key with a confidence interval is followed by the keys of its two ends.

    Example:
        >>> list(add_interval_keys(["deid", "op_l_w"]))
        ['deid', 'deid_low', 'deid_high', 'op_l_w']
    """
    for key in keys:
        yield key
        yield from (f"{key}{suffix}" for suffix in CI_SUFFIXES if scalar(key).has_interval)


def headline_keys(has_attacks: bool = True, has_sessions: bool = False) -> tuple[str, ...]:
    """Return the keys of ``VoicePrivacy(metrics="headline")``.

    Example:
        >>> len(headline_keys()), len(headline_keys(has_sessions=True))
        (29, 31)
    """
    keys = list(_HEADLINE_OF_SYSTEM)
    for condition in ("OP", _hidden_protected_condition(has_sessions)):
        for key in _HEADLINE_OF_CONDITION:
            if has_attacks or _BY_KEY[key].family != "attack":
                keys.append(scalar_key(condition, key))
    if has_sessions:
        keys += ["within_d_ece", "within_eer"]
    return (*keys, "op_l_w", "op_tag")


def bare_population_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys of measures in a population, each once and without its condition.

    They have the order of the registry.

    Example:
        >>> bare_population_keys(["op_rate_20", "op_eer", "pp_rate_20", "op_gallery"])
        ('rate_20', 'gallery')
    """
    entries = [entry for entry in map(scalar, keys) if entry.family in OF_POPULATION]
    named = {entry.key.removeprefix(scalar_key(entry.condition, "")) for entry in entries}
    sizes = dict.fromkeys(
        int(match[2]) for key in sorted(named) if (match := _OF_SIZE.fullmatch(key))
    )
    return tuple(
        key for key in _population_keys("OP", tuple(sizes), has_attacks=True) if key in named
    )


def is_extrapolated(key: str, values: Mapping[str, float]) -> bool:
    """Return whether a key is that of a rate for more people than there are references.

    The number of references is in the values.

    Example:
        >>> is_extrapolated("op_rate_20", {"op_gallery": 12.0}), is_extrapolated("op_eer", {})
        (True, False)
    """
    entry = scalar(key)
    if entry.family not in OF_POPULATION:
        return False
    match = re.search(r"rate_(\d+)(_strongest)?$", key)
    if match is None:
        return False
    gallery_key = scalar_key(entry.condition, f"gallery{match[2] or ''}")
    return int(match[1]) > values.get(gallery_key, math.nan)


def scalar_keys(
    conditions: Sequence[str] = WITHOUT_SESSIONS,
    has_attacks: bool = False,
    has_sessions: bool = False,
    sizes: Sequence[int] = (),
) -> tuple[str, ...]:
    """Return the keys of all numbers of some conditions in the order of a report.

    Example:
        >>> scalar_keys(("OP",))[10:13]
        ('op_d_ece', 'op_d_ece_reversed', 'op_l_w')
    """
    keys = _keys_of_families(("headline", "system"))
    hidden = hidden_conditions(conditions)
    for condition in conditions:
        # Original speech is not attacked.
        if has_attacks and condition != "OO":
            families: tuple[str, ...] = (*OF_CONDITION, "attack", "attack_limit")
        else:
            families = OF_CONDITION
        if condition in hidden:
            families = (*families, *OF_RISKS)
        of_condition = _keys_of_families(families)
        if has_sessions and condition == "OP":
            of_condition.append("c_ece")
        if sizes:
            of_condition += _population_keys(condition, sizes, has_attacks)
        keys += [scalar_key(condition, key) for key in of_condition]
    if set(WITHOUT_SESSIONS) <= set(conditions):
        keys += _keys_of_families(("relative",))
    return tuple(keys)


def _keys_of_families(families: Iterable[str]) -> list[str]:
    keys: list[str] = []
    for family in families:
        keys += [entry.key for entry in FAMILIES[family]]
    return keys


def _population_keys(condition: str, sizes: Sequence[int], has_attacks: bool) -> Iterator[str]:
    suffixes = [""]
    if has_attacks and condition != "OO":
        suffixes.append("_strongest")  # a weak attacker's number never stands alone
    for size in sizes:
        for suffix in suffixes:
            yield f"rate_{size}{suffix}"
    # conversations of several sessions cannot calibrate each other
    if condition in WITHOUT_SESSIONS:
        for size in sizes:
            yield f"singling_out_{size}"
            yield f"singling_out_{size}_error"
    for suffix in suffixes:
        yield f"gallery{suffix}"
