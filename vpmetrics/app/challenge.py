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

from vpmetrics.app.errors import InputError

_VECTORS = "speaker_vectors.pt", "xvector.scp", "xvector.ark"
_LEVELS = "utt-level", "spk-level"
_SCORED = re.compile(r"(?:ASV-)?(?P<enrol>.+_enrolls.*?)-(?P<trial>.+_trials.*)")
_SET = re.compile(r"(?P<base>.+)_(?:enrolls|trials(?P<part>.*))")
_PARTS = re.compile(r"(_(f|m|mixed|all|common)(?=_|$))*")  # of a set, before the name of the anonymiser
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
        """Which pairs are trials."""
        path = self.lists.find(self.trial, "trials")
        if path is None:
            raise InputError(
                f"expected the trials of {self.trial}, but found no {self.trial}/trials", self.lists.folder
            )
        return path


class Results(NamedTuple):
    """One anonymiser on the development or on the test sets."""

    name: str
    side: str
    parts: tuple[Part, ...]

    @property
    def scored(self) -> bool:
        """Whether there are scores of all its sets, so that embeddings are not asked for."""
        return all("OP" in part.scores or "PP" in part.scores for part in self.parts)

    def weights(self) -> dict[str, float]:
        """What the sets weigh in the challenge's averages; nothing where another set is among them."""
        kinds = {part.name: re.sub(r"_(dev|test)", "", part.name) for part in self.parts}
        return {name: _WEIGHTS[kind] for name, kind in kinds.items()} if set(kinds.values()) <= set(_WEIGHTS) else {}


class Place(NamedTuple):
    """A folder of a folder for every set: files of vectors by set, and of scores by the sets compared."""

    vectors: dict[str, Path]
    scores: dict[tuple[str, str], Path]

    @property
    def datasets(self) -> set[str]:
        """The sets of both."""
        names = {*self.vectors, *(name for pair in self.scores for name in pair)}
        return {name for name in names if _SET.fullmatch(name)}


class Lists:
    """The lists of a recipe: in the folder of results, or in the folder ``data`` of the recipe it is in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = [parent / "data" for parent in list(folder.resolve().parents)[:4] if (parent / "data").is_dir()]
        self._paths = [path for root in (folder, *recipe) for path in sorted(root.rglob("*")) if _is_list(path)]

    def find(self, dataset: str, kind: str) -> Path | None:
        """``libri_test_trials_f/trials``, or ``libri_test/trials_f``, or either name in the folder itself."""
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


def find_results(folder: Path) -> list[Results]:
    """Every anonymiser whose results are in a folder, by split; those of several extractors are never mixed."""
    places = _places(folder)
    lists, found = Lists(folder), []
    for root, place in places.items():
        sides = sorted({_side(name) for name in place.datasets} - {""})
        sets = sorted({name.removesuffix(_side(name)) for name in place.datasets if "_trials" in name})
        sets = [name for name in sets if not name.endswith("_all")]  # those only join others
        found += [(root, one) for side in sides for one in _by_split(side, sets, place, lists)]
    if not found:
        expected = "ASV-<set>_enrolls-<set>_trials_<sex>_<system>/scores, or speaker_vectors.pt below such names"
        raise InputError(f"expected results of a VoicePrivacy challenge ({expected}), but got none", folder)
    names = Counter(one.name for _, one in found)
    return [
        one if names[one.name] == 1 else one._replace(name=f"{one.name}, {root.relative_to(folder)}")
        for root, one in found
    ]


def _places(folder: Path) -> dict[Path, Place]:
    """The folders below a folder that hold a folder for every set: of one extractor, or of one run of a recipe."""
    places: dict[Path, Place] = defaultdict(lambda: Place({}, {}))
    for path in (path for name in _VECTORS for path in sorted(folder.rglob(name)) if _is_whole(path)):
        dataset = path.parent.parent if path.parent.name in _LEVELS else path.parent
        name = dataset.name.removeprefix("xvect_")  # as some recipes put it
        places[dataset.parent].vectors.setdefault(name, path)
    for path in sorted(folder.rglob("scores*")):
        match = _SCORED.fullmatch(path.parent.name)
        if match and path.name in ("scores", "scores.gz"):
            places[path.parent.parent].scores[match["enrol"], match["trial"]] = path
    return places


def _is_whole(path: Path) -> bool:
    return path.parent.name != "spk-level" and not path.parent.name.startswith("temp")


def _side(name: str) -> str:
    """What follows the name of a set of original speech: the name of the anonymiser, or nothing."""
    _, kind, rest = re.split("(_enrolls|_trials)", name, maxsplit=1)
    match = _PARTS.match(rest)
    return rest[match.end() :] if kind == "_trials" and match else rest


def _by_split(side: str, sets: Sequence[str], place: Place, lists: Lists) -> Iterator[Results]:
    parts: dict[str, list[Part]] = {}
    for trial in sets:
        base, _, kind = trial.partition("_trials")
        enrol = f"{base}_enrolls"
        pairs = {"OO": (enrol, trial), "OP": (enrol, trial + side), "PP": (enrol + side, trial + side)}
        own = {name: place.vectors[name] for pair in pairs.values() for name in pair if name in place.vectors}
        scored = {condition: place.scores[pair] for condition, pair in pairs.items() if pair in place.scores}
        if trial + side in own or {"OP", "PP"} & set(scored):
            split = next((split for split in ("dev", "test") if split in base.split("_")), "")
            parts.setdefault(split, []).append(Part(base + kind, enrol, trial, own, scored, lists))
    for split, some in parts.items():
        name = side.strip("_-")
        yield Results(f"{name} {split}" if len(parts) > 1 else name, side, tuple(some))
