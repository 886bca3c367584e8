"""Utility beside privacy: word error rates and the like, from options or from the challenges' result files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from vpmetrics.cli.errors import InputError, quote, reason_of

_SUMMARIES = "result_for_rank*", "results_orig*.txt", "results_anon*.txt", "results.txt", "results_summary.txt"
_KALDI = re.compile(r"^ASR-(\w+?)_(dev|test)_asr_(\w+)\s.*%WER\s+([\d.]+)", re.MULTILINE)


def read_utility(options: Sequence[str], systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return values of each system: ``NAME=VALUE`` of all, or a CSV with a column ``system`` and one per measure."""
    values: dict[str, dict[str, float]] = {system: {} for system in systems}
    for option in options:
        name, equals, text = option.partition("=")
        if equals:
            if len(systems) > 1:
                raise InputError(f"Expected --utility FILE.csv for several systems, but got {quote(option)}.")
            values[systems[0]][name] = _number(text, option)
            continue
        try:
            frame = pl.read_csv(option, infer_schema=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"cannot be read as NAME=VALUE or CSV ({reason_of(error)})", option) from None
        if "system" not in frame.columns:
            raise InputError(f"expected a column system, but got {', '.join(frame.columns)}", option)
        for row in frame.to_dicts():
            system = row.pop("system")
            if system not in values:
                raise InputError(f"expected one of {', '.join(systems)}, but got {quote(system)}", option)
            values[system] |= {key: _number(text, option) for key, text in row.items() if text not in (None, "")}
    return values


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"Expected a number in --utility {quote(option)}, but got {quote(text)}.") from None


def find_utility(folder: Path, suffix: str, dataset: str, is_alone: bool) -> dict[str, float]:
    """Return WER and UAR of protected speech from the summaries of a recipe, averaged over its sets.

    Args:
        folder: A folder of results; summaries are in it, or in ``results_summary`` beside it.
        suffix: What follows the names of sets of protected speech.
        dataset: ``"dev"``, ``"test"``, or nothing for either.
        is_alone: Whether no other system is in the folder, so that a summary need not name the system.
    """
    places = [folder, folder.parent / "results_summary", folder.parent.parent / "results_summary"]
    paths = [path for place in places for name in _SUMMARIES for path in sorted(place.rglob(name)) if path.is_file()]
    found: dict[str, list[float]] = {}
    for path in paths:
        named = f"{path.parent.name}/{path.name}"
        if (
            not named.removesuffix(path.suffix).endswith(suffix)
            and suffix not in path.parent.name
            and not (is_alone and path.is_relative_to(folder))
        ):
            continue
        for name, values in _read_summary(path.read_text(errors="replace"), suffix, dataset).items():
            found.setdefault(name, values)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _read_summary(text: str, suffix: str, dataset: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    # Of 2020 and 2022: a line of Kaldi, under or behind the name of the set; the last is of the large language model.
    for _, split, system, value in _KALDI.findall(re.sub(r"\n\s+", " ", text)):
        if system == suffix.strip("_") and split == (dataset or split):
            found.setdefault("WER", []).append(float(value))
    # Of 2024 and 2026: tables as pandas prints them.
    for section, measure in (("ASR", "WER"), ("SER", "UAR")):
        table = re.search(rf"^---- {section} results ----\n(.*\n)((?:\s*mean.*\n)?)((?:.+\n?)*)", text, re.MULTILINE)
        if table is None or measure not in table[1].split():
            continue
        at = table[1].split().index(measure) - len(table[1].split())
        for row in map(str.split, table[3].splitlines()):
            if len(row) > len(table[1].split()) - 1 and "anon" in row and (not dataset or dataset in row):
                found.setdefault(measure, []).append(float(row[at]))
    return found
