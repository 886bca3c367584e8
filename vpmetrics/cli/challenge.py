"""``vpmetrics challenge``: results folders of the VoicePrivacy challenges."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.inputs import InputError
from vpmetrics._util.scalar import printable
from vpmetrics.cli.compare import name_systems
from vpmetrics.cli.options import ChallengeOptions
from vpmetrics.cli.speech import name_of_sources
from vpmetrics.cli.terminal import check_outputs, check_utility, publish_systems
from vpmetrics.readers import challenge as challenge_reader
from vpmetrics.readers import evaluation, trial_protocol
from vpmetrics.readers.challenge import ChallengeResult
from vpmetrics.readers.embeddings import fit_plda
from vpmetrics.readers.trial_files import read_map
from vpmetrics.report.privacy_report import EvaluatedSystem


class NamedResults:
    """The results of one folder with the name of each.

    Folder and system, data set and attacker where they differ.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.results = challenge_reader.find_score_and_vector_files(folder)
        self.has_several_systems = self._has_several_values_of("system")
        self._has_several_datasets = self._has_several_values_of("dataset")
        self._has_several_attackers = self._has_several_values_of("attacker")
        self._name = name

    def _has_several_values_of(self, field: str) -> bool:
        return len({getattr(result, field) for result in self.results}) > 1

    def name_without_attacker(self, result: ChallengeResult) -> str:
        """Return the name of a system on a data set."""
        name = self._name
        if not name or self.has_several_systems:
            name = f"{name} {result.system}".strip()
        if self._has_several_datasets:
            name = f"{name} {result.dataset}"
        return printable(name)

    def name(self, result: ChallengeResult) -> str:
        """Return the name of a system on a data set against an attacker."""
        name = self.name_without_attacker(result)
        if self._has_several_attackers:
            return f"{name}, {attacker_of(result)}"
        return name


def attacker_of(result: ChallengeResult) -> str:
    """Return the name of the attacker of a result."""
    return result.attacker or "another attacker"


def challenge(options: ChallengeOptions, console: Console) -> None:
    """Evaluate all systems, data sets and attackers of results folders."""
    folders = _find_results(options)
    _check_options(options, folders)
    systems: list[EvaluatedSystem] = []
    for named in folders:
        systems += _evaluate_folder(named, options)
    sources = ", ".join(str(named.folder) for named in folders)
    title = options.output.title or name_of_sources([str(folders[0].folder)])
    publish_systems(systems, options, title, f"Voice privacy of {printable(sources)}", console)


def _find_results(options: ChallengeOptions) -> list[NamedResults]:
    """List the results of all folders, without reading them."""
    if len(options.folders) == 1 and "=" not in options.folders[0]:
        return [NamedResults("", _check_folder(options.folders[0]))]
    folders: list[NamedResults] = []
    for name, path in name_systems(options.folders).items():
        folders.append(NamedResults(name, _check_folder(path)))
    return folders


def _check_folder(path: str) -> Path:
    folder = Path(path)
    if not folder.is_dir():
        raise InputError("expected a folder of results of a challenge, but got none", path)
    return folder


def _check_options(options: ChallengeOptions, folders: Sequence[NamedResults]) -> None:
    """Raise for options that cannot be used, before anything is computed."""
    names: list[str] = []
    has_vectors = False
    for named in folders:
        for result in named.results:
            names.append(named.name(result))
            has_vectors = has_vectors or not result.is_read_from_scores
    check_utility(options.output, names)
    check_outputs(options.output, [str(named.folder) for named in folders])
    if (options.scoring == "plda") != (options.plda_fit is not None):
        raise InputError(
            "Expected --scoring plda and --plda-fit FILE together, but got one without the other."
        )
    if options.weights is not None:
        read_map(options.weights, "set weight")
    if has_vectors:
        return
    for option, value in (("--scoring", options.scoring), ("--no-attacks", options.no_attacks)):
        if value:
            raise InputError(f"Expected no {option} with a folder of scores: it would do nothing.")


def _evaluate_folder(named: NamedResults, options: ChallengeOptions) -> list[EvaluatedSystem]:
    """Evaluate all results of one folder; of several attackers the strongest comes first."""
    by_attacker: dict[str, dict[str, EvaluatedSystem]] = defaultdict(dict)
    for result in named.results:
        scoring = _read_scoring(options)
        listed, embeddings = challenge_reader.read_listed_trials(result, scoring, options.speakers)
        weights = trial_protocol.read_weights_or_empty(options.weights, set(listed.groups))
        is_alone = not named.has_several_systems
        system = evaluation.evaluate_listed_trials(
            named.name(result), listed, weights or result.official_weights, options.intervals
        )
        system = replace(
            system,
            dataset=result.dataset,
            challenge_condition_names=result.challenge_condition_names,
            utility=challenge_reader.find_utility(
                named.folder, result.suffix, result.dataset, is_alone
            ),
        )
        system = trial_protocol.add_attacks_and_matrices(
            system, embeddings, scoring, options.intervals, not options.no_attacks
        )
        by_attacker[named.name_without_attacker(result)][attacker_of(result)] = system
    systems: list[EvaluatedSystem] = []
    for name, of_attackers in by_attacker.items():
        systems += _lead_with_strongest_attacker(name, of_attackers)
    return systems


def _lead_with_strongest_attacker(
    name: str, of_attackers: Mapping[str, EvaluatedSystem]
) -> list[EvaluatedSystem]:
    """Return the result against the attacker who learns most, then that against each one."""
    systems = list(of_attackers.values())
    if len(systems) == 1:
        return systems
    disclosures: dict[str, float] = {}
    for attacker, system in of_attackers.items():
        disclosure = system.get_or_nan("disclosure")
        if not math.isnan(disclosure):
            disclosures[attacker] = disclosure
    strongest = max(
        disclosures, key=lambda attacker: disclosures[attacker], default=next(iter(of_attackers))
    )
    note = f"{name}: of {len(systems)} attackers, {strongest} learns most"
    leading = of_attackers[strongest]
    leading = replace(leading, name=name, notes=(*leading.notes, note))
    return [leading, *(replace(system, part_of=name) for system in systems)]


def _read_scoring(options: ChallengeOptions) -> Scoring:
    if options.plda_fit is not None:
        return fit_plda(options.plda_fit, options.speakers)
    return options.scoring or "cosine"
