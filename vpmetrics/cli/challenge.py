"""Results of the VoicePrivacy challenges, as their recipes leave them in a folder.

Of 2020 and 2022: ``ASV-libri_test_enrolls-libri_test_trials_f_anon/scores``, and the trials of each set. Of 2024 and
2026: ``emb_xvect/libri_test_trials_f_anon/utt-level/speaker_vectors.pt`` with ``id2idx``, and the lists of each set.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from vpmetrics._engine.scorers import Scoring
from vpmetrics.cli.attacked import Attackable
from vpmetrics.cli.embeddings import Column, Files, merge
from vpmetrics.cli.errors import InputError
from vpmetrics.cli.formats import VECTORS
from vpmetrics.cli.scores import Trials, label_trials, read_key, read_list, read_map, read_scores
from vpmetrics.cli.trials import CONDITIONS, ListedTrials, Protocol, read_protocol, score_listed

_VECTOR_FILES = VECTORS, "xvector.scp", "xvector.ark"
_LEVELS = "utt-level", "spk-level"
_SCORED = re.compile(r"(?:ASV-)?(?P<enrol>.+_enrolls.*?)-(?P<trial>.+_trials.*)")
_PARTS = re.compile(r"(_(f|m|mixed|all|common)(?=_|$))*")  # of a set, before the name of the anonymiser
_ORIGINAL_ATTACKER, _PROTECTED_ATTACKER = "ASV_eval", "ASV_eval^anon"
# Weights in the averages of the challenges of 2020 and 2022; of 2024, which has LibriSpeech only, the same.
_WEIGHTS = {
    "libri_f": 0.25,
    "libri_m": 0.25,
    "vctk_f": 0.2,
    "vctk_m": 0.2,
    "vctk_f_common": 0.05,
    "vctk_m_common": 0.05,
}


class Part(NamedTuple):
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

    ``suffix`` follows the names of sets of protected speech; ``encoders`` counts those that its parts were compared by.
    """

    system: str
    dataset: str
    attacker: str
    suffix: str
    parts: tuple[Part, ...]
    place: str = ""
    encoders: int = 1

    @property
    def is_scored(self) -> bool:
        """Whether all sets have scores and some have no vectors, of which more could be said."""
        return all("OP" in part.scores or "PP" in part.scores for part in self.parts) and not all(
            part.trial + self.suffix in part.vectors for part in self.parts
        )

    @property
    def pooled(self) -> tuple[str, ...]:
        """The sets that count together: those of mixed sex if there are some, since they hold the others' trials."""
        mixed = tuple(part.name for part in self.parts if part.name.endswith("_mixed"))
        return mixed or tuple(part.name for part in self.parts)

    @property
    def weights(self) -> dict[str, float]:
        """What sets weigh in the challenge's averages; nothing where another set is among them."""
        kinds = {name: re.sub(r"_(dev|test)", "", name) for name in self.pooled}
        if all(kind.endswith("_mixed") for kind in kinds.values()):
            return dict.fromkeys(kinds, 1 / len(kinds))
        return {name: _WEIGHTS[kind] for name, kind in kinds.items()} if set(kinds.values()) <= set(_WEIGHTS) else {}

    @property
    def attack_models(self) -> dict[str, str]:
        """What the challenges call each condition."""
        known = {_ORIGINAL_ATTACKER: ", lazy-informed", _PROTECTED_ATTACKER: ", semi-informed"}
        ignorant = "" if self.attacker == _PROTECTED_ATTACKER else ", ignorant"
        return {"OO": "OO", "OP": f"OA{ignorant}", "PP": f"AA{known.get(self.attacker, '')}"}


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
        places: tuple[Callable[[Path], bool], ...] = (
            lambda path: (path.parent.name, path.name) == (dataset, kind),
            lambda path: f"{path.parent.name}_{path.name}" == dataset,
            lambda path: path.parent == self.folder and dataset.endswith(f"_{path.name}"),
            lambda path: path.parent == self.folder and path.name == kind,
        )
        named = [path for path in self._paths if path.name.startswith(kind)]
        return next((path for is_there in places for path in named if is_there(path)), None)


def _is_list(path: Path) -> bool:
    return path.name.startswith(("trials", "enrolls", "utt2spk")) and path.suffix == "" and path.is_file()


def has_results(folder: Path) -> bool:
    """Return whether a folder holds results of a challenge."""
    return bool(_find_places(folder))


def find_results(folder: Path) -> list[Result]:
    """Return every anonymiser whose results are in a folder, by dataset and attacker."""
    lists, found = Lists(folder), list[Result]()
    for root, place in _find_places(folder).items():
        suffixes = sorted({_suffix(name) for name in place.datasets} - {""})
        sets = sorted({name.removesuffix(_suffix(name)) for name in place.datasets if "_trials" in name})
        sets = [name for name in sets if not name.endswith("_all")]  # those only join others
        for suffix in suffixes:
            where = "" if root == folder else root.relative_to(folder).as_posix()
            found += _by_dataset(suffix, sets, place, lists, _attacker_of(root), where)
    if not found:
        expected = "ASV-<set>_enrolls-<set>_trials_<sex>_<system>/scores, or speaker_vectors.pt below such names"
        raise InputError(f"expected results of a VoicePrivacy challenge ({expected}), but got none", folder)
    found = _join_encoders(found)
    names = Counter((one.system, one.dataset, one.attacker) for one in found)
    return [
        one if names[one.system, one.dataset, one.attacker] == 1 else one._replace(system=f"{one.system}, {one.place}")
        for one in found
    ]


def _find_places(folder: Path) -> dict[Path, _Place]:
    """Return the folders that hold a folder for every set: of one encoder, or of one run of a recipe."""
    places: dict[Path, _Place] = defaultdict(lambda: _Place({}, {}))
    for path in (path for name in _VECTOR_FILES for path in sorted(folder.rglob(name)) if _is_whole(path)):
        dataset = path.parent.parent if path.parent.name in _LEVELS else path.parent
        root = (
            dataset.parent.parent if dataset.parent.name == "emb_xvect" and dataset.parent != folder else dataset.parent
        )
        places[root].vectors.setdefault(dataset.name.removeprefix("xvect_"), path)  # as some recipes put it
    for path in sorted(folder.rglob("scores*")):
        match = _SCORED.fullmatch(path.parent.name)
        if match and path.name in ("scores", "scores.gz"):
            places[path.parent.parent].scores[match["enrol"], match["trial"]] = path
    return {root: place for root, place in places.items() if place.datasets}


def _is_whole(path: Path) -> bool:
    return path.parent.name != "spk-level" and not path.parent.name.startswith("temp")


def _attacker_of(root: Path) -> str:
    """Return the attacker's encoder as the recipes name its folder: trained on original or on protected speech."""
    for name in map(str.lower, (root.name, *(parent.name for parent in list(root.resolve().parents)[:3]))):
        if "asv_anon" in name or "asv_eval_anon" in name:
            return _PROTECTED_ATTACKER
        if re.search(r"asv_(orig|ssl|eval)", name) or name.endswith(".orig"):
            return _ORIGINAL_ATTACKER
    return ""


def _suffix(name: str) -> str:
    """Return what follows the name of a set of original speech: the name of the anonymiser, or nothing."""
    _, kind, rest = re.split("(_enrolls|_trials)", name, maxsplit=1)
    match = _PARTS.match(rest)
    return rest[match.end() :] if kind == "_trials" and match else rest


def _by_dataset(
    suffix: str, sets: Sequence[str], place: _Place, lists: Lists, attacker: str, where: str
) -> Iterator[Result]:
    parts: dict[str, list[Part]] = {}
    for trial in sets:
        base, _, kind = trial.partition("_trials")
        enrol = f"{base}_enrolls"
        pairs = {"OO": (enrol, trial), "OP": (enrol, trial + suffix), "PP": (enrol + suffix, trial + suffix)}
        vectors = {name: place.vectors[name] for pair in pairs.values() for name in pair if name in place.vectors}
        scores = {condition: place.scores[pair] for condition, pair in pairs.items() if pair in place.scores}
        if trial + suffix in vectors or {"OP", "PP"} & set(scores):
            dataset = next((name for name in ("dev", "test") if name in base.split("_")), "")
            parts.setdefault(dataset, []).append(Part(base + kind, enrol, trial, vectors, scores, lists))
    for dataset, some in parts.items():
        yield Result(suffix.strip("_-"), dataset, attacker, suffix, tuple(some), where)


def _join_encoders(found: Sequence[Result]) -> list[Result]:
    """Join results of one system and attacker on different sets, as of languages that have an encoder each."""
    joined: dict[tuple[str, ...], Result] = {}
    for one in found:
        key = (one.system, one.dataset, one.attacker) if one.attacker == _PROTECTED_ATTACKER else (*one[:3], one.place)
        before = joined.get(key)
        if before is not None and {part.name for part in before.parts} & {part.name for part in one.parts}:
            before, key = None, (*key, one.place)
        if before is not None:
            one = one._replace(parts=before.parts + one.parts, encoders=before.encoders + 1)
        joined[key] = one
    return list(joined.values())


def read_result(result: Result, scoring: Scoring, utt2spk: str | None = None) -> tuple[ListedTrials, list[Attackable]]:
    """Read the trials of all sets, and what attackers have of each: embeddings are scored, if there are no scores."""
    sets: list[Attackable] = []
    notes: list[str] = []
    listed_as = {} if utt2spk is None else read_map(utt2spk)
    speaker_of: dict[str, str] = {}
    read: list[Mapping[str, Trials]] = []
    for part in result.parts:
        if result.is_scored:
            read.append(_read_scores(part))
            speaker_of |= listed_as or _listed_speakers(part)
        else:
            one = _read_vectors(part, result.suffix, listed_as)
            listed = score_listed(*one[:3], scoring)
            sets.append(one)
            read.append(listed.trials)
            speaker_of |= one.protocol.speaker_of
            notes += listed.notes
    trials = {}
    for condition in CONDITIONS:
        frames = [
            one[condition]
            .frame.with_columns(group=pl.lit(part.name))
            .select("enrol", "trial", "score", "is_target", "group")
            for part, one in zip(result.parts, read, strict=True)
            if condition in one
        ]
        if frames:
            found = [note for one in read if condition in one for note in one[condition].notes]
            trials[condition] = Trials(pl.concat(frames), tuple(found))
    if result.encoders > 1:
        notes.append(f"its sets were compared by {result.encoders} encoders; their average says more than all together")
    if result.is_scored:
        notes.append("no DeID and no G_VD: they need embeddings, and there are scores of models only")
    groups = tuple(part.name for part in result.parts)
    sets = [one for one in sets if one.group in result.pooled]
    return ListedTrials(trials, speaker_of, groups, tuple(notes), result.pooled), sets


def _read_scores(part: Part) -> dict[str, Trials]:
    files = {condition: read_scores(path) for condition, path in part.scores.items()}
    is_labelled = all("is_target" in file.frame.columns for file in files.values())
    key = None if is_labelled else read_key(part.trials())
    return {condition: label_trials(file, key) for condition, file in files.items()}


def _read_vectors(part: Part, suffix: str, listed_as: dict[str, str]) -> Attackable:
    files = Files()
    original, protected = (_read_side(part, end, files) for end in ("", suffix))
    return Attackable(original, protected, _read_protocol(part, suffix, listed_as, files), part.name)


def _read_side(part: Part, suffix: str, files: Files) -> Column:
    """Read one side of enrolments and trials; an attacker who protects recordings as well needs no original speech."""
    there = [part.vectors[name] for name in (part.enrol + suffix, part.trial + suffix) if name in part.vectors]
    if not there:
        return Column(np.zeros((0, 0)), [], f"{part.trial}{suffix}/{VECTORS}, which is not there")
    return merge([files.column(str(path), "original") for path in there])


def _read_protocol(part: Part, suffix: str, listed_as: dict[str, str], files: Files) -> Protocol:
    """Read which pairs are trials; a speaker is enrolled with the mean of their utterances in the set for that."""
    path = part.vectors.get(part.enrol) or part.vectors.get(part.enrol + suffix)
    if path is None:
        raise InputError(f"expected embeddings of {part.enrol}, but found no {VECTORS}", part.lists.folder)
    listed = part.lists.find(part.enrol, "enrolls")
    enrolled = read_list(listed) if listed else files.arrays(str(path)).utterances or []
    speaker_of = listed_as or _speakers_of(part, files)
    if not set(enrolled) <= set(speaker_of):
        raise InputError(f"expected the speakers of {part.enrol}, but found no {part.enrol}/utt2spk", part.lists.folder)
    return read_protocol([part.trials()], enrolled, speaker_of)


def _speakers_of(part: Part, files: Files) -> dict[str, str]:
    """Return the speaker of every utterance: from lists, or from what stands beside the vectors."""
    speaker_of: dict[str, str] = {}
    for path in part.vectors.values():
        arrays = files.arrays(str(path))
        if "speakers" in arrays.by_name:
            speaker_of |= zip(arrays.utterances or [], arrays.by_name["speakers"].tolist(), strict=True)
    return speaker_of | _listed_speakers(part)


def _listed_speakers(part: Part) -> dict[str, str]:
    speaker_of: dict[str, str] = {}
    for dataset in ("", part.enrol, part.trial):
        listed = part.lists.find(dataset, "utt2spk")
        speaker_of |= {} if listed is None else read_map(listed)
    return speaker_of
