"""Results of the VoicePrivacy challenges as their recipes leave them in a folder: privacy and utility.

Of 2020 and 2022: ``ASV-libri_test_enrolls-libri_test_trials_f_anon/scores``, and the trials of each set. Of 2024 and
2026: ``emb_xvect/libri_test_trials_f_anon/utt-level/speaker_vectors.pt`` with ``id2idx``, and the lists of each set.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from vpmetrics._engine.conditions import WITHOUT_SESSIONS
from vpmetrics._engine.scorers import Scoring
from vpmetrics.cli.embeddings import Column, Files, merge
from vpmetrics.cli.formats import VECTORS
from vpmetrics.cli.inputs import InputError, describe_error, quote
from vpmetrics.cli.trial_files import Trials, label_trials, read_key, read_list, read_map, read_scores
from vpmetrics.cli.trial_protocol import Attackable, ListedTrials, Protocol, read_protocol, score_listed

_VECTOR_FILES = VECTORS, "xvector.scp", "xvector.ark"
_LEVELS = "utt-level", "spk-level"
_SCORED = re.compile(r"(?:ASV-)?(?P<enrol>.+_enrolls.*?)-(?P<trial>.+_trials.*)")
_PARTS = re.compile(r"(_(f|m|mixed|all|common)(?=_|$))*")  # of a set, before the name of the anonymiser
_ORIGINAL_ATTACKER, _PROTECTED_ATTACKER = "ASV_eval", "ASV_eval^anon"
# Weights in the averages of the challenges of 2020 and 2022; of 2024, which has LibriSpeech only, the same.
_WEIGHTS = {
    f"{base}_{sex}{part}": weight
    for base, part, weight in (("libri", "", 0.25), ("vctk", "", 0.2), ("vctk", "_common", 0.05))
    for sex in "fm"
}


# Summaries of utility, and in those of 2020 and 2022 the word error rates of Kaldi.
_SUMMARIES = "result_for_rank*", "results_orig*.txt", "results_anon*.txt", "results.txt", "results_summary.txt"
_KALDI = re.compile(r"^ASR-(\w+?)_(dev|test)_asr_(\w+)\s.*%WER\s+([\d.]+)", re.MULTILINE)


class TrialSet(NamedTuple):
    """A set of trials: its vectors by dataset, its scores by condition, and the lists that go with it."""

    name: str
    enrol: str
    trial: str
    vectors: Mapping[str, Path]
    scores: Mapping[str, Path]
    lists: Lists

    def trials(self) -> Path:
        """Return the list of its trials."""
        path = self.lists.find(self.trial, "trials")
        if path is None:
            got = f"found no {self.trial}/trials"
            raise InputError(f"expected the trials of {self.trial}, but {got}", self.lists.folder)
        return path


class Result(NamedTuple):
    """One anonymiser on the development or on the test sets, to one attacker's speaker encoder.

    ``suffix``: end of the names of protected sets; ``encoders``: how many encoders were used to compare the parts.
    """

    system: str
    dataset: str
    attacker: str
    suffix: str
    parts: tuple[TrialSet, ...]
    place: str = ""
    encoders: int = 1

    @property
    def has_only_scores(self) -> bool:
        """Whether all sets have scores, but some lack vectors; with vectors, more could be reported."""
        return all("OP" in part.scores or "PP" in part.scores for part in self.parts) and not all(
            part.trial + self.suffix in part.vectors for part in self.parts
        )

    @property
    def pooled_sets(self) -> tuple[str, ...]:
        """Names of sets whose trials are pooled: those of mixed sex if there are any, as they contain the rest."""
        mixed = tuple(part.name for part in self.parts if part.name.endswith("_mixed"))
        return mixed or tuple(part.name for part in self.parts)

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the sets in the averages of the challenge; empty if a set has no official weight."""
        kinds = {name: re.sub(r"_(dev|test)", "", name) for name in self.pooled_sets}
        if all(kind.endswith("_mixed") for kind in kinds.values()):
            return dict.fromkeys(kinds, 1 / len(kinds))
        return {name: _WEIGHTS[kind] for name, kind in kinds.items()} if set(kinds.values()) <= set(_WEIGHTS) else {}

    @property
    def attack_models(self) -> dict[str, str]:
        """Name of each condition in the challenges."""
        suffixes = {_ORIGINAL_ATTACKER: ", lazy-informed", _PROTECTED_ATTACKER: ", semi-informed"}
        ignorant = "" if self.attacker == _PROTECTED_ATTACKER else ", ignorant"
        return {"OO": "OO", "OP": f"OA{ignorant}", "PP": f"AA{suffixes.get(self.attacker, '')}"}


class _Place(NamedTuple):
    """Files of one encoder: vectors by set, and scores by the sets compared."""

    vectors: dict[str, Path]
    scores: dict[tuple[str, str], Path]

    @property
    def datasets(self) -> set[str]:
        names = {*self.vectors, *(name for pair in self.scores for name in pair)}
        return {name for name in names if re.fullmatch(".+_(enrolls|trials).*", name)}


class Lists:
    """The lists of a recipe: in the folder of results, or in the folder ``data`` of the recipe it is in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = [parent / "data" for parent in list(folder.resolve().parents)[:4] if (parent / "data").is_dir()]
        self._paths = [path for root in (folder, *recipe) for path in sorted(root.rglob("*")) if _is_list(path)]

    def find(self, dataset: str, kind: str) -> Path | None:
        """Return ``libri_test_trials_f/trials``, or ``libri_test/trials_f``, or either name in the folder itself."""

        def rank(path: Path) -> int:
            is_here = path.parent == self.folder
            matches = (
                (path.parent.name, path.name) == (dataset, kind),
                f"{path.parent.name}_{path.name}" == dataset,
                is_here and dataset.endswith(f"_{path.name}"),
                is_here and path.name == kind,
            )
            return matches.index(True) if any(matches) else len(matches)

        ranked = [(rank(path), path) for path in self._paths if path.name.startswith(kind)]
        best, path = min(ranked, key=lambda pair: pair[0], default=(4, None))
        return path if best < 4 else None


def _is_list(path: Path) -> bool:
    return path.name.startswith(("trials", "enrolls", "utt2spk")) and path.suffix == "" and path.is_file()


def has_results(folder: Path) -> bool:
    """Return whether a folder holds results of a challenge."""
    return bool(_find_places(folder))


def find_results(folder: Path) -> list[Result]:
    """Return every anonymiser whose results are in a folder, by dataset and attacker."""
    lists, results = Lists(folder), list[Result]()
    for root, place in _find_places(folder).items():
        suffixes = sorted({_anonymiser_suffix(name) for name in place.datasets} - {""})
        sets = sorted({name.removesuffix(_anonymiser_suffix(name)) for name in place.datasets if "_trials" in name})
        sets = [name for name in sets if not name.endswith("_all")]  # these are unions of others
        for suffix in suffixes:
            where = "" if root == folder else root.relative_to(folder).as_posix()
            results += _group_by_dataset(suffix, sets, place, lists, _attacker_of(root), where)
    if not results:
        expected = "ASV-<set>_enrolls-<set>_trials_<sex>_<system>/scores, or speaker_vectors.pt below such names"
        raise InputError(f"expected results of a VoicePrivacy challenge ({expected}), but got none", folder)
    results = _join_encoders(results)
    names = Counter((one.system, one.dataset, one.attacker) for one in results)
    return [
        one if names[one.system, one.dataset, one.attacker] == 1 else one._replace(system=f"{one.system}, {one.place}")
        for one in results
    ]


def _find_places(folder: Path) -> dict[Path, _Place]:
    """Return the folders with one subfolder per set: each belongs to one encoder or one run of a recipe."""
    places: dict[Path, _Place] = defaultdict(lambda: _Place({}, {}))
    for path in (path for name in _VECTOR_FILES for path in sorted(folder.rglob(name)) if _is_complete(path)):
        dataset = path.parent.parent if path.parent.name in _LEVELS else path.parent
        root = (
            dataset.parent.parent if dataset.parent.name == "emb_xvect" and dataset.parent != folder else dataset.parent
        )
        places[root].vectors.setdefault(dataset.name.removeprefix("xvect_"), path)  # prefix of some recipes
    for path in sorted(folder.rglob("scores*")):
        match = _SCORED.fullmatch(path.parent.name)
        if match and path.name in ("scores", "scores.gz"):
            places[path.parent.parent].scores[match["enrol"], match["trial"]] = path
    return {root: place for root, place in places.items() if place.datasets}


def _is_complete(path: Path) -> bool:
    return path.parent.name != "spk-level" and not path.parent.name.startswith("temp")


def _attacker_of(root: Path) -> str:
    """Return the attacker's encoder, trained on original or on protected speech, by the name of its folder."""
    for name in map(str.lower, (root.name, *(parent.name for parent in list(root.resolve().parents)[:3]))):
        if "asv_anon" in name or "asv_eval_anon" in name:
            return _PROTECTED_ATTACKER
        if re.search(r"asv_(orig|ssl|eval)", name) or name.endswith(".orig"):
            return _ORIGINAL_ATTACKER
    return ""


def _anonymiser_suffix(name: str) -> str:
    """Return the end of the name of a protected set, which is the anonymiser; empty for original speech."""
    _, kind, rest = re.split("(_enrolls|_trials)", name, maxsplit=1)
    match = _PARTS.match(rest)
    return rest[match.end() :] if kind == "_trials" and match else rest


def _group_by_dataset(
    suffix: str, sets: Sequence[str], place: _Place, lists: Lists, attacker: str, where: str
) -> Iterator[Result]:
    parts: dict[str, list[TrialSet]] = {}
    for trial in sets:
        base, _, kind = trial.partition("_trials")
        enrol = f"{base}_enrolls"
        pairs = {"OO": (enrol, trial), "OP": (enrol, trial + suffix), "PP": (enrol + suffix, trial + suffix)}
        vectors = {name: place.vectors[name] for pair in pairs.values() for name in pair if name in place.vectors}
        scores = {condition: place.scores[pair] for condition, pair in pairs.items() if pair in place.scores}
        if trial + suffix in vectors or {"OP", "PP"} & set(scores):
            dataset = next((name for name in ("dev", "test") if name in base.split("_")), "")
            parts.setdefault(dataset, []).append(TrialSet(base + kind, enrol, trial, vectors, scores, lists))
    for dataset, some in parts.items():
        yield Result(suffix.strip("_-"), dataset, attacker, suffix, tuple(some), where)


def _join_encoders(results: Sequence[Result]) -> list[Result]:
    """Join results of one system and attacker on different sets, such as languages with an encoder each."""
    joined: dict[tuple[str, ...], Result] = {}
    for one in results:
        key = (one.system, one.dataset, one.attacker) if one.attacker == _PROTECTED_ATTACKER else (*one[:3], one.place)
        before = joined.get(key)
        if before is not None and {part.name for part in before.parts} & {part.name for part in one.parts}:
            before, key = None, (*key, one.place)
        if before is not None:
            one = one._replace(parts=before.parts + one.parts, encoders=before.encoders + 1)
        joined[key] = one
    return list(joined.values())


def read_result(result: Result, scoring: Scoring, utt2spk: str | None = None) -> tuple[ListedTrials, list[Attackable]]:
    """Read the trials of all sets, and the embeddings that can be attacked; without scores, embeddings are compared."""
    sets: list[Attackable] = []
    notes: list[str] = []
    listed_as = {} if utt2spk is None else read_map(utt2spk)
    speaker_of: dict[str, str] = {}
    read: dict[str, Mapping[str, Trials]] = {}
    for part in result.parts:
        if result.has_only_scores:
            read[part.name] = _read_scores(part)
            speaker_of |= listed_as or _listed_speakers(part)
        else:
            one = _read_vectors(part, result.suffix, listed_as)
            listed = score_listed(*one[:3], scoring)
            sets += [one] if one.group in result.pooled_sets else []
            read[part.name] = listed.trials
            speaker_of |= one.protocol.speaker_of
            notes += listed.notes
    trials, columns = {}, ("enrol", "trial", "score", "is_target")
    for condition in WITHOUT_SESSIONS:
        scored = {name: one[condition] for name, one in read.items() if condition in one}
        frames = [one.frame.select(*columns, group=pl.lit(name)) for name, one in scored.items()]
        if frames:
            trials[condition] = Trials(pl.concat(frames), tuple(note for one in scored.values() for note in one.notes))
    if result.encoders > 1:
        notes.append(
            f"its sets were compared by {result.encoders} encoders, so read the average of sets, not the pooled trials"
        )
    if result.has_only_scores:
        notes.append("no DeID and no G_VD: they need embeddings, and the folder has only scores")
    return ListedTrials(trials, speaker_of, tuple(read), tuple(notes), result.pooled_sets), sets


def _read_scores(part: TrialSet) -> dict[str, Trials]:
    files = {condition: read_scores(path) for condition, path in part.scores.items()}
    is_labelled = all("is_target" in file.frame.columns for file in files.values())
    key = None if is_labelled else read_key(part.trials())
    return {condition: label_trials(file, key) for condition, file in files.items()}


def _read_vectors(part: TrialSet, suffix: str, listed_as: dict[str, str]) -> Attackable:
    files, sides = Files(), []
    for end in ("", suffix):
        # PP needs no original speech: the attacker protects the enrolment, too.
        there = [part.vectors[name] for name in (part.enrol + end, part.trial + end) if name in part.vectors]
        columns = [files.read_column(str(path), "original") for path in there]
        missing = Column(np.zeros((0, 0)), [], f"{part.trial}{end}/{VECTORS}, which is not there")
        sides.append(merge(columns) if columns else missing)
    return Attackable(sides[0], sides[1], _read_protocol(part, suffix, listed_as, files), part.name)


def _read_protocol(part: TrialSet, suffix: str, listed_as: dict[str, str], files: Files) -> Protocol:
    """Read which pairs are trials; a speaker is enrolled with the mean of their utterances in the enrolment set."""
    path = part.vectors.get(part.enrol) or part.vectors.get(part.enrol + suffix)
    if path is None:
        raise InputError(f"expected embeddings of {part.enrol}, but found no {VECTORS}", part.lists.folder)
    listed = part.lists.find(part.enrol, "enrolls")
    enrolled = read_list(listed) if listed else files.read_arrays(str(path)).utterances or []
    speaker_of = dict(listed_as)
    for embeddings_file in () if listed_as else part.vectors.values():
        arrays = files.read_arrays(str(embeddings_file))
        if "speakers" in arrays.by_name:
            speaker_of |= zip(arrays.utterances or [], arrays.by_name["speakers"].tolist(), strict=True)
    speaker_of = listed_as or speaker_of | _listed_speakers(part)
    if not set(enrolled) <= set(speaker_of):
        raise InputError(f"expected the speakers of {part.enrol}, but found no {part.enrol}/utt2spk", part.lists.folder)
    return read_protocol([part.trials()], enrolled, speaker_of)


def _listed_speakers(part: TrialSet) -> dict[str, str]:
    speaker_of: dict[str, str] = {}
    for dataset in ("", part.enrol, part.trial):
        listed = part.lists.find(dataset, "utt2spk")
        speaker_of |= {} if listed is None else read_map(listed)
    return speaker_of


def read_utility(options: Sequence[str], systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the utilities of each system: ``NAME=VALUE`` of all, or a CSV with a column ``system``."""
    values: dict[str, dict[str, float]] = {system: {} for system in systems}
    for option in options:
        name, equals, text = option.partition("=")
        if equals:
            if len(systems) > 1:
                raise InputError(f"Expected --utility FILE.csv for several systems, but got {quote(option)}.")
            values[systems[0]][name] = _parse_utility(text, option)
            continue
        try:
            frame = pl.read_csv(option, infer_schema=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(f"cannot be read as NAME=VALUE or CSV ({describe_error(error)})", option) from None
        if "system" not in frame.columns:
            raise InputError(f"expected a column system, but got {', '.join(frame.columns)}", option)
        for row in frame.to_dicts():
            system = row.pop("system")
            if system not in values:
                raise InputError(f"expected one of {', '.join(systems)}, but got {quote(system)}", option)
            values[system] |= {key: _parse_utility(text, option) for key, text in row.items() if text not in (None, "")}
    return values


def _parse_utility(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"Expected a number in --utility {quote(option)}, but got {quote(text)}.") from None


def find_utility(folder: Path, suffix: str, dataset: str, is_alone: bool) -> dict[str, float]:
    """Return WER and UAR of protected speech from the summaries of a recipe, averaged over its sets.

    Args:
        folder: A folder of results; summaries are in it, or in a folder ``results_summary`` next to it.
        suffix: What follows the names of sets of protected speech.
        dataset: ``"dev"``, ``"test"``, or nothing for either.
        is_alone: Whether no other system is in the folder, so that a summary need not name the system.
    """
    places = [folder, folder.parent / "results_summary", folder.parent.parent / "results_summary"]
    paths = [path for place in places for name in _SUMMARIES for path in sorted(place.rglob(name)) if path.is_file()]
    values_by_name: dict[str, list[float]] = {}
    for path in paths:
        named = f"{path.parent.name}/{path.name}"
        if (
            not named.removesuffix(path.suffix).endswith(suffix)
            and suffix not in path.parent.name
            and not (is_alone and path.is_relative_to(folder))
        ):
            continue
        for name, values in _read_summary(path.read_text(errors="replace"), suffix, dataset).items():
            values_by_name.setdefault(name, values)
    return {name: sum(values) / len(values) for name, values in values_by_name.items()}


def _read_summary(text: str, suffix: str, dataset: str) -> dict[str, list[float]]:
    values_by_name: dict[str, list[float]] = {}
    # 2020 and 2022: a line of Kaldi below or after the name of the set; the last one has the large language model.
    for _, split, system, value in _KALDI.findall(re.sub(r"\n\s+", " ", text)):
        if system == suffix.strip("_") and split == (dataset or split):
            values_by_name.setdefault("WER", []).append(float(value))
    # 2024 and 2026: tables as pandas prints them.
    for section, measure in (("ASR", "WER"), ("SER", "UAR")):
        table = re.search(rf"^---- {section} results ----\n(.*\n)((?:\s*mean.*\n)?)((?:.+\n?)*)", text, re.MULTILINE)
        if table is None or measure not in table[1].split():
            continue
        at = table[1].split().index(measure) - len(table[1].split())
        for row in map(str.split, table[3].splitlines()):
            if len(row) > len(table[1].split()) - 1 and "anon" in row and (not dataset or dataset in row):
                values_by_name.setdefault(measure, []).append(float(row[at]))
    return values_by_name
