"""The tables of the report, once: the terminal and the page show the same words and digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from vpmetrics.app.evaluation import Evaluation, key_of

CONDITIONS = {
    "OO": "original against original",
    "OP": "original against protected",
    "PP": "protected against protected",
}


class Metric(NamedTuple):
    """A scalar as people read it."""

    key: str
    heading: str
    unit: str
    show: Callable[[float], str]
    tells: str

    @property
    def title(self) -> str:
        """Heading and unit."""
        return f"{self.heading} [{self.unit}]" if self.unit else self.heading


class Table(NamedTuple):
    """Texts, ready to be shown; the first column names the row."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def show_bits(value: float) -> str:
    """Three decimals, or the power of ten of what they would hide; not that of rounding errors."""
    return _plain(f"{value:.0e}" if 1e-9 < abs(value) < 0.0005 else f"{value:.3f}")


def show_percent(value: float) -> str:
    """A share as per cent, two decimals."""
    return _plain(f"{100 * value:.2f}")


def show_decibels(value: float) -> str:
    """Two decimals, with the sign."""
    return _plain(f"{value:+.2f}")


def _plain(text: str) -> str:
    if not text.strip("-+0."):
        return text.lstrip("-+")  # zero has no sign
    return text.replace("-", "−")


def _show_tag(value: float) -> str:
    return "0ABCDEF"[int(value)] if value >= 0 else "?"


OF_SYSTEM = (
    Metric(
        "deid",
        "DeID",
        "%",
        show_percent,
        "how much of what tells the original voices apart is gone between "
        "original and protected speech; 100 hides everybody",
    ),
    Metric(
        "gvd",
        "G_VD",
        "dB",
        show_decibels,
        "how distinct protected voices are from each other, relative to the original ones; 0 is as distinct as before",
    ),
)
OF_SCORES = (
    Metric(
        "d_ece",
        "D_ECE",
        "bit",
        show_bits,
        "expected disclosure: what the scores tell an attacker on average over "
        "all priors; 0 is perfect privacy, 0.721 full disclosure",
    ),
    Metric(
        "d_ece_reversed",
        "D_ECE reversed",
        "bit",
        show_bits,
        "the same for an attacker who turns the sign of the "
        "scores; clearly above 0, the protection can be undone that way",
    ),
    Metric(
        "l_w",
        "l_w",
        "log10",
        show_bits,
        "worst case: the strongest evidence a single trial gives, as a power of ten of the odds",
    ),
    Metric("tag", "tag", "", _show_tag, "category of the worst case, from 0 (perfect privacy) by A (best) to F"),
    Metric("min_cllr", "min Cllr", "bit", show_bits, "cost of the best-calibrated scores; 1 is perfect privacy"),
    Metric("cllr", "Cllr", "bit", show_bits, "cost of taking the scores for log-likelihood ratios as they stand"),
    Metric(
        "eer",
        "EER",
        "%",
        show_percent,
        "error rate where misses and false alarms are equal (convex hull); 50 is perfect privacy",
    ),
    Metric(
        "linkability",
        "linkability",
        "",
        show_bits,
        "share of what can be linked, by score (Gómez-Barrero); 0 is perfect privacy",
    ),
    Metric("max_d", "MaxD", "bit", show_bits, "similarity rank disclosure at the rank that discloses most"),
    Metric("mean_d", "MeanD", "bit", show_bits, "similarity rank disclosure on average; 0 is perfect privacy"),
    Metric("id_rate", "identified", "%", show_percent, "share of utterances whose own speaker is the most similar one"),
    Metric("rank_spread", "rank spread", "%", show_percent, "share of the ranks that are likelier than by chance"),
    Metric(
        "alid", "ALID", "bit", show_bits, "local information disclosure on average over trials; below 0 scores mislead"
    ),
    Metric("pdr", "PDR", "%", show_percent, "share of trials that disclose anything about their speaker"),
    Metric("lid_max", "largest LID", "bit", show_bits, "local information disclosure of the trial that discloses most"),
    Metric("d_diag", "D_diag", "", show_bits, "by how much the diagonal of the similarity matrix stands out"),
    Metric("d_diag_log", "D_diag, log", "bit", show_bits, "the same for the logarithm of the similarities"),
)
OF_CALIBRATION = (
    Metric(
        "c_ece_linear",
        "C_ECE, linear",
        "bit",
        show_bits,
        "disclosure to an attacker who learnt a linear "
        "calibration on another run; 0 is good, below 0 the attacker had better guess",
    ),
    Metric("c_ece_isotonic", "C_ECE, isotonic", "bit", show_bits, "the same with an isotonic calibration"),
)
# Beside the columns of original-protected trials.
WITHIN_PROTECTED = Metric(
    "pp_d_ece",
    "PP D_ECE",
    "bit",
    show_bits,
    "expected disclosure to an attacker who enrols with speech protected by the same system",
)
RELATIVES = (
    Metric("d_ece_op_oo", "D_ECE (OP/OO)", "%", show_percent, "de-identification by expected disclosure; compare DeID"),
    Metric("cllr_op_oo", "min Cllr (OP/OO)", "%", show_percent, "de-identification by minimum Cllr; compare DeID"),
    Metric(
        "g_d_ece", "G by D_ECE", "dB", show_decibels, "gain of distinctiveness by expected disclosure; compare G_VD"
    ),
    Metric("g_cllr", "G by min Cllr", "dB", show_decibels, "gain of distinctiveness by minimum Cllr; compare G_VD"),
)
ALL = (*OF_SYSTEM, *OF_SCORES, WITHIN_PROTECTED, *OF_CALIBRATION, *RELATIVES)
_BY_KEY = {metric.key: metric for metric in ALL}

# The columns of table 2 of the 2022 paper, and what goes with them.
_COMPARED = ("d_ece", "d_ece_reversed", "l_w", "tag", "eer", "max_d", "mean_d")


def show(key: str, scalars: Mapping[str, float], condition: str = "") -> str:
    """A scalar as text; a dash where it is unknown or undefined."""
    value = scalars.get(key_of(condition, key), math.nan)
    return "–" if math.isnan(value) else _BY_KEY[key].show(value)


def tables_of_system(system: Evaluation) -> list[Table]:
    """All that is known of one system: as a whole, condition by condition, and relative to the original."""
    scalars, conditions = system.scalars, tuple(system.trials)
    heads = tuple(condition or "scores" for condition in conditions)
    known = [m for m in OF_SCORES if any(key_of(condition, m.key) in scalars for condition in conditions)]
    rows = [(m.title, *(show(m.key, scalars, condition) for condition in conditions)) for m in known]
    for number, kind in enumerate(("target", "non-target")):
        rows.append((f"{kind} trials", *(f"{system.trials[condition][number]:,}" for condition in conditions)))
    by_condition = Table("What scores disclose", ("", *heads), rows)
    return [
        *_list("Pseudonymisation", OF_SYSTEM, scalars),
        *_list("Relative to original speech", RELATIVES, scalars),
        *_list("Calibrated on another run", OF_CALIBRATION, scalars),
        by_condition,
    ]


def _list(title: str, metrics: Sequence[Metric], scalars: Mapping[str, float]) -> list[Table]:
    rows: list[tuple[str, ...]] = [
        (metric.title, show(metric.key, scalars)) for metric in metrics if metric.key in scalars
    ]
    return [Table(title, ("", "value"), rows)] if rows else []


def table_of_systems(systems: Sequence[Evaluation], title: str) -> Table:
    """Systems side by side, under unprotected speech where that is known."""
    per_row: list[tuple[str, Mapping[str, float], str]] = []
    if "OO" in systems[0].trials:
        unprotected = systems[0].scalars
        changes = {"deid": 0.0, "gvd": 0.0, WITHIN_PROTECTED.key: unprotected[key_of("OO", "d_ece")]}
        per_row.append(("original", {**unprotected, **changes}, "OO"))
    per_row += [(system.name, system.scalars, system.attacked) for system in systems]
    of_system = [m for m in OF_SYSTEM if any(m.key in system.scalars for system in systems)]
    of_scores = [
        _BY_KEY[key] for key in _COMPARED if any(key_of(system.attacked, key) in system.scalars for system in systems)
    ]
    within = [WITHIN_PROTECTED] if any(WITHIN_PROTECTED.key in system.scalars for system in systems) else []
    rows = [
        (
            name,
            *(show(metric.key, scalars) for metric in of_system),
            *(show(metric.key, scalars, condition) for metric in of_scores),
            *(show(metric.key, scalars) for metric in within),
        )
        for name, scalars, condition in per_row
    ]
    if any(system.attacked for system in systems):
        title = f"{title} ({of_scores[0].heading} to {of_scores[-1].heading} of OP)"
    return Table(title, ("system", *(metric.title for metric in (*of_system, *of_scores, *within))), rows)


def as_json(system: Evaluation) -> dict[str, object]:
    """A system as JSON has it: the tag as its letter, null for NaN, and the words Python reads for infinities."""
    return {
        "name": system.name,
        "scalars": {key: _as_json(key, value) for key, value in system.scalars.items()},
        "trials": {
            condition or "scores": {"target": target, "nontarget": nontarget}
            for condition, (target, nontarget) in system.trials.items()
        },
        "notes": list(system.notes),
    }


def _as_json(key: str, value: float) -> object:
    if key.endswith("tag"):
        return _show_tag(value)
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)
