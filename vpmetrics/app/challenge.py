"""Results of the VoicePrivacy challenges, as their recipes leave them in a folder.

Of 2020 and 2022: ``ASV-libri_test_enrolls-libri_test_trials_f_anon/scores``, and the trials of each set. Of 2024 and
2026: ``emb_xvect/libri_test_trials_f_anon/utt-level/speaker_vectors.pt`` with ``id2idx``, and the lists of each set.
"""

from __future__ import annotations

import re
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

    def weights(self) -> dict[str, float]:
        """What the sets weigh in the challenge's averages; nothing where another set is among them."""
        kinds = {part.name: re.sub(r"_(dev|test)", "", part.name) for part in self.parts}
        return {name: _WEIGHTS[kind] for name, kind in kinds.items()} if set(kinds.values()) <= set(_WEIGHTS) else {}


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
    """Every anonymiser whose results are in a folder, by split."""
    vectors = {_dataset(path): path for name in _VECTORS for path in sorted(folder.rglob(name)) if _is_whole(path)}
    scores = {}
    for path in sorted(folder.rglob("scores*")):
        match = _SCORED.fullmatch(path.parent.name)
        if match and path.name in ("scores", "scores.gz"):
            scores[match["enrol"], match["trial"]] = path
    lists = Lists(folder)
    datasets = {name for name in (*vectors, *(name for pair in scores for name in pair)) if _SET.fullmatch(name)}
    sides = sorted({_side(name) for name in datasets} - {""})
    trials = {name.removesuffix(_side(name)) for name in datasets if "_trials" in name}
    sets = sorted(name for name in trials if not name.endswith("_all"))  # those only join others
    found = [one for side in sides for one in _by_split(side, sets, vectors, scores, lists)]
    if not found:
        expected = "ASV-<set>_enrolls-<set>_trials_<sex>_<system>/scores, or speaker_vectors.pt below such names"
        raise InputError(f"expected results of a VoicePrivacy challenge ({expected}), but got none", folder)
    return found


def _dataset(path: Path) -> str:
    """The folder that is called as a set is, without what some recipes put before it."""
    parent = path.parent.parent if path.parent.name in _LEVELS else path.parent
    return parent.name.removeprefix("xvect_")


def _is_whole(path: Path) -> bool:
    return path.parent.name != "spk-level" and not path.parent.name.startswith("temp")


def _side(name: str) -> str:
    """What follows the name of a set of original speech: the name of the anonymiser, or nothing."""
    _, kind, rest = re.split("(_enrolls|_trials)", name, maxsplit=1)
    match = _PARTS.match(rest)
    return rest[match.end() :] if kind == "_trials" and match else rest


def _by_split(
    side: str,
    sets: Sequence[str],
    vectors: Mapping[str, Path],
    scores: Mapping[tuple[str, str], Path],
    lists: Lists,
) -> Iterator[Results]:
    parts: dict[str, list[Part]] = {}
    for trial in sets:
        base, _, kind = trial.partition("_trials")
        enrol = f"{base}_enrolls"
        pairs = {"OO": (enrol, trial), "OP": (enrol, trial + side), "PP": (enrol + side, trial + side)}
        own = {name: vectors[name] for pair in pairs.values() for name in pair if name in vectors}
        scored = {condition: scores[pair] for condition, pair in pairs.items() if pair in scores}
        if trial + side in own or {"OP", "PP"} & set(scored):
            split = next((split for split in ("dev", "test") if split in base.split("_")), "")
            parts.setdefault(split, []).append(Part(base + kind, enrol, trial, own, scored, lists))
    for split, some in parts.items():
        name = side.strip("_-")
        yield Results(f"{name} {split}" if len(parts) > 1 else name, side, tuple(some))
