"""Results of the VoicePrivacy challenges as their recipes leave them in a folder: privacy and
utility.

2020 and 2022: ``ASV-libri_test_enrolls-libri_test_trials_f_anon/scores``, and the trials of each
set. 2024 and 2026: ``emb_xvect/libri_test_trials_f_anon/utt-level/speaker_vectors.pt`` with
``id2idx``, and the lists of each set.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np
import polars as pl

from vpmetrics._scores.scorers import Scoring
from vpmetrics._util.inputs import InputError, describe_error, quote
from vpmetrics._util.utterance_names import (
    INFERRED_SPEAKERS,
    describe_inferred_speakers,
    infer_speakers,
)
from vpmetrics._utterances.conditions import WITHOUT_SESSIONS
from vpmetrics.readers.embeddings import Column, EmbeddingFiles, merge_columns_by_utterance
from vpmetrics.readers.formats import VECTOR_FILE
from vpmetrics.readers.trial_files import (
    Trials,
    label_trials,
    read_first_column,
    read_key,
    read_map,
    read_scores,
)
from vpmetrics.readers.trial_protocol import (
    ListedTrials,
    TrialEmbeddings,
    read_protocol,
    score_protocol,
)

_VECTOR_FILES = VECTOR_FILE, "xvector.scp", "xvector.ark"
_SCORE_FOLDER = re.compile(r"(?:ASV-)?(?P<enrol>.+_enrolls.*?)-(?P<trial>.+_trials.*)")
_SUBSETS = re.compile(r"(_(f|m|mixed|all|common)(?=_|$))*")  # before the name of the anonymiser
_ORIGINAL_ATTACKER: Final = "ASV_eval"
_PROTECTED_ATTACKER: Final = "ASV_eval^anon"
# Weights in the averages of the challenges of 2020 and 2022; 2024 has those of LibriSpeech, its
# only corpus.
_WEIGHTS = {
    f"{base}_{sex}{part}": weight
    for base, part, weight in (("libri", "", 0.25), ("vctk", "", 0.2), ("vctk", "_common", 0.05))
    for sex in "fm"
}
# Files with utilities, and the lines with word error rates of Kaldi in those of 2020 and 2022.
_SUMMARIES = (
    "result_for_rank*",
    "results_orig*.txt",
    "results_anon*.txt",
    "results.txt",
    "results_summary.txt",
)
_KALDI = re.compile(r"^ASR-(\w+?)_(dev|test)_asr_(\w+)\s.*%WER\s+([\d.]+)", re.MULTILINE)


# vectors of a set by its name, scores by the names of both sets compared
_EncoderFiles = dict[tuple[str, ...], Path]


class TrialSet(NamedTuple):
    """A set of trials: its vectors by dataset, its scores by condition, and the lists that go with
    it.
    """

    name: str
    enrol: str
    trial: str
    vectors: Mapping[str, Path]
    scores: Mapping[str, Path]
    lists: RecipeLists


class ChallengeResult(NamedTuple):
    """The result files of one anonymiser on the development or on the test sets, against one
    attacker.

    ``suffix``: end of the names of protected sets; ``encoders``: number of encoders that embedded
    the sets.
    """

    system: str
    dataset: str
    attacker: str
    folder: Path
    suffix: str
    trial_sets: tuple[TrialSet, ...]
    encoders: int = 1

    @property
    def is_read_from_scores(self) -> bool:
        """Whether trials are read from score files: all sets have scores, and some lack vectors."""
        has_scores = all("OP" in one.scores or "PP" in one.scores for one in self.trial_sets)
        return has_scores and not all(
            one.trial + self.suffix in one.vectors for one in self.trial_sets
        )

    @property
    def pooled_sets(self) -> tuple[str, ...]:
        """Names of the sets that are pooled: those of mixed sex, which contain the others, or all
        if there are none.
        """
        names = tuple(one.name for one in self.trial_sets)
        return tuple(name for name in names if name.endswith("_mixed")) or names

    @property
    def official_weights(self) -> dict[str, float]:
        """Weights of the sets in the averages of the challenge; empty if a set has no official
        weight.
        """
        kinds = {name: re.sub(r"_(dev|test)", "", name) for name in self.pooled_sets}
        if all(name.endswith("_mixed") for name in kinds):
            return dict.fromkeys(kinds, 1 / len(kinds))
        return (
            {name: _WEIGHTS[kind] for name, kind in kinds.items()}
            if set(kinds.values()) <= set(_WEIGHTS)
            else {}
        )

    @property
    def challenge_condition_names(self) -> dict[str, str]:
        """Name of each condition in the challenges."""
        suffixes = {_ORIGINAL_ATTACKER: ", lazy-informed", _PROTECTED_ATTACKER: ", semi-informed"}
        ignorant = "" if self.attacker == _PROTECTED_ATTACKER else ", ignorant"
        return {"OO": "OO", "OP": f"OA{ignorant}", "PP": f"AA{suffixes.get(self.attacker, '')}"}


class RecipeLists:
    """Lists of trials, enrolments and speakers: in the folder of results, or in ``data`` of the
    recipe it is in.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        recipe = [
            parent / "data"
            for parent in list(folder.resolve().parents)[:4]
            if (parent / "data").is_dir()
        ]
        self._paths = [
            path
            for root in (folder, *recipe)
            for path in sorted(root.rglob("*"))
            if path.name.startswith(("trials", "enrolls", "utt2spk"))
            and path.suffix == ""
            and path.is_file()
        ]

    def find(self, set_name: str, kind: str) -> Path | None:
        """Return ``libri_test_trials_f/trials``, or ``libri_test/trials_f``, or either name in the
        folder itself.
        """
        paths = [path for path in self._paths if path.name.startswith(kind)]
        in_folder = [path for path in paths if path.parent == self.folder]
        by_preference = (
            *(path for path in paths if (path.parent.name, path.name) == (set_name, kind)),
            *(path for path in paths if f"{path.parent.name}_{path.name}" == set_name),
            *(path for path in in_folder if set_name.endswith(f"_{path.name}")),
            *(path for path in in_folder if path.name == kind),
        )
        return next(iter(by_preference), None)

    def find_trials(self, set_name: str) -> Path:
        """Return the list of the trials of a set; raise if there is none."""
        if path := self.find(set_name, "trials"):
            return path
        raise InputError(
            f"expected the trials of {set_name}, but found no {set_name}/trials", self.folder
        )


def find_score_and_vector_files(folder: Path) -> list[ChallengeResult]:
    """List score and vector files in a folder without reading them: one entry per anonymiser,
    dataset and attacker.

    Entries that share all three get their folder in the field ``system``.
    """
    lists = RecipeLists(folder)
    results = [
        result
        for root, files in find_encoders(folder).items()
        for result in _list_results(root, files, lists)
    ]
    if not results:
        expected = (
            "ASV-<set>_enrolls-<set>_trials_<sex>_<system>/scores, or speaker_vectors.pt below such"
            " names"
        )
        raise InputError(
            f"expected results of a VoicePrivacy challenge ({expected}), but got none", folder
        )
    # Results of one system, dataset and attacker on different sets, such as languages with an
    # encoder each, are joined.
    joined: dict[tuple[str, ...], ChallengeResult] = {}
    for one in results:
        of_folder = (*one[:3], str(one.folder))
        key = of_folder[:3] if one.attacker == _PROTECTED_ATTACKER else of_folder
        before = joined.get(key)
        if before is None:
            joined[key] = one
        elif {each.name for each in before.trial_sets} & {each.name for each in one.trial_sets}:
            joined[of_folder] = one
        else:
            joined[key] = one._replace(
                trial_sets=before.trial_sets + one.trial_sets, encoders=before.encoders + 1
            )
    counts = Counter(one[:3] for one in joined.values())
    return [
        (
            one
            if counts[one[:3]] == 1
            else one._replace(system=f"{one.system}, {one.folder.relative_to(folder).as_posix()}")
        )
        for one in joined.values()
    ]


def find_encoders(folder: Path) -> dict[Path, _EncoderFiles]:
    """Return the files of a challenge by folder with one subfolder per set: by encoder, or by run
    of a recipe.
    """
    encoders: dict[Path, _EncoderFiles] = defaultdict(dict)
    for path in (path for name in _VECTOR_FILES for path in sorted(folder.rglob(name))):
        of_set = path.parent.parent if path.parent.name == "utt-level" else path.parent
        name = of_set.name.removeprefix("xvect_")  # of some recipes
        is_of_utterances = path.parent.name != "spk-level" and not path.parent.name.startswith(
            "temp"
        )
        if is_of_utterances and re.fullmatch(".+_(enrolls|trials).*", name):
            is_nested = of_set.parent.name == "emb_xvect" and of_set.parent != folder
            encoders[of_set.parent.parent if is_nested else of_set.parent].setdefault((name,), path)
    for path in sorted(folder.rglob("scores*")):
        match = _SCORE_FOLDER.fullmatch(path.parent.name)
        if match and path.name in ("scores", "scores.gz"):
            encoders[path.parent.parent][match["enrol"], match["trial"]] = path
    return encoders


def _find_attacker_encoder(root: Path) -> Literal["ASV_eval", "ASV_eval^anon", ""]:
    """Return the attacker's encoder, trained on original or protected speech, by names of folders;
    empty if unknown.
    """
    for name in map(
        str.lower, (root.name, *(parent.name for parent in list(root.resolve().parents)[:3]))
    ):
        if "asv_anon" in name or "asv_eval_anon" in name:
            return _PROTECTED_ATTACKER
        if re.search(r"asv_(orig|ssl|eval)", name) or name.endswith(".orig"):
            return _ORIGINAL_ATTACKER
    return ""


def _anonymiser_suffix(name: str) -> str:
    """Return the end of the name of a protected set, which is the anonymiser; empty for original
    speech.
    """
    _, kind, rest = re.split("(_enrolls|_trials)", name, maxsplit=1)
    match = _SUBSETS.match(rest)
    return rest[match.end() :] if kind == "_trials" and match else rest


def _list_results(root: Path, files: _EncoderFiles, lists: RecipeLists) -> list[ChallengeResult]:
    """Return the results of one encoder: one of each anonymiser and dataset."""
    suffix_of = {name: _anonymiser_suffix(name) for names in files for name in names}
    originals = {
        name.removesuffix(suffix) for name, suffix in suffix_of.items() if "_trials" in name
    }
    by_suffix_and_dataset: dict[tuple[str, str], list[TrialSet]] = defaultdict(list)
    for suffix, trial in product(sorted({*suffix_of.values()} - {""}), sorted(originals)):
        base, _, subset = trial.partition("_trials")
        enrol = f"{base}_enrolls"
        pairs = {
            "OO": (enrol, trial),
            "OP": (enrol, trial + suffix),
            "PP": (enrol + suffix, trial + suffix),
        }
        vectors = {
            name: files[name,] for pair in pairs.values() for name in pair if (name,) in files
        }
        scores = {condition: files[pair] for condition, pair in pairs.items() if pair in files}
        is_union = subset.endswith("_all")  # of other sets
        if not is_union and (trial + suffix in vectors or {"OP", "PP"} & set(scores)):
            dataset = next((name for name in ("dev", "test") if name in base.split("_")), "")
            trial_set = TrialSet(base + subset, enrol, trial, vectors, scores, lists)
            by_suffix_and_dataset[suffix, dataset].append(trial_set)
    return [
        ChallengeResult(
            suffix.strip("_-"),
            dataset,
            _find_attacker_encoder(root),
            root,
            suffix,
            tuple(trial_sets),
        )
        for (suffix, dataset), trial_sets in by_suffix_and_dataset.items()
    ]


def read_listed_trials(
    result: ChallengeResult, scoring: Scoring, utt2spk: str | None = None
) -> tuple[ListedTrials, list[TrialEmbeddings]]:
    """Return the scored trials of all sets, from score files or embeddings, and the embeddings for
    attacks.
    """
    embeddings: list[TrialEmbeddings] = []
    notes: list[str] = []
    listed_speakers = {} if utt2spk is None else read_map(utt2spk)
    speaker_of: dict[str, str] = {}
    trials_by_set: dict[str, Mapping[str, Trials]] = {}
    for trial_set in result.trial_sets:
        if result.is_read_from_scores:
            files = {condition: read_scores(path) for condition, path in trial_set.scores.items()}
            is_labelled = all("is_target" in file.frame.columns for file in files.values())
            key = None if is_labelled else read_key(trial_set.lists.find_trials(trial_set.trial))
            trials_by_set[trial_set.name] = {
                condition: label_trials(file, key) for condition, file in files.items()
            }
            speakers = listed_speakers or _read_listed_speakers(trial_set)
            if not speakers:
                tested = {
                    name
                    for file in files.values()
                    for name in file.frame["trial"].unique().to_list()
                }
                speakers = infer_speakers(sorted(tested))
                notes += [describe_inferred_speakers(speakers)] if speakers else []
            speaker_of |= speakers
        else:
            of_set = _read_trial_embeddings(trial_set, result.suffix, listed_speakers)
            listed = score_protocol(of_set.original, of_set.protected, of_set.protocol, scoring)
            embeddings += [of_set] if trial_set.name in result.pooled_sets else []
            trials_by_set[trial_set.name] = listed.trials
            speaker_of |= of_set.protocol.speaker_of
            notes += [*of_set.notes, *listed.notes]
    trials, columns = {}, ("enrol", "trial", "score", "is_target")
    for condition in WITHOUT_SESSIONS:
        scored = {
            name: of_set[condition] for name, of_set in trials_by_set.items() if condition in of_set
        }
        frames = [one.frame.select(*columns, group=pl.lit(name)) for name, one in scored.items()]
        if frames:
            trials[condition] = Trials(
                pl.concat(frames), tuple(note for one in scored.values() for note in one.notes)
            )
    if result.encoders > 1:
        encoders = f"its sets were compared by {result.encoders} encoders"
        notes.append(f"{encoders}, so read the average of sets, not the pooled trials")
    if result.is_read_from_scores:
        notes.append("no DeID and no G_VD: they need embeddings, and the folder has only scores")
    notes = _keep_first_notes_on_speakers(notes)
    return (
        ListedTrials(trials, speaker_of, tuple(trials_by_set), tuple(notes), result.pooled_sets),
        embeddings,
    )


def _keep_first_notes_on_speakers(notes: Sequence[str]) -> list[str]:
    """Return the notes, with the one that says how speakers were inferred once, not for every
    set.
    """
    kept: list[str] = []
    is_said = False
    for note in notes:
        is_on_speakers = note.startswith(INFERRED_SPEAKERS)
        if not (is_on_speakers and is_said):
            kept.append(note)
        is_said = is_said or is_on_speakers
    return kept


def _read_trial_embeddings(
    trial_set: TrialSet, suffix: str, listed_speakers: Mapping[str, str]
) -> TrialEmbeddings:
    files, sides = EmbeddingFiles(), []
    for end in ("", suffix):
        # PP needs no original speech: the attacker protects the enrolment, too.
        paths = map(trial_set.vectors.get, (trial_set.enrol + end, trial_set.trial + end))
        columns = [files.read_column(str(path), "original") for path in paths if path is not None]
        missing = Column(
            np.zeros((0, 0)), [], f"{trial_set.trial}{end}/{VECTOR_FILE}, which is not there"
        )
        sides.append(merge_columns_by_utterance(columns) if columns else missing)
    # A speaker is enrolled with the mean of their utterances in the enrolment set.
    enrol, vectors, lists = trial_set.enrol, trial_set.vectors, trial_set.lists
    path = vectors.get(enrol) or vectors.get(enrol + suffix)
    if path is None:
        raise InputError(
            f"expected embeddings of {enrol}, but found no {VECTOR_FILE}", lists.folder
        )
    listed = lists.find(enrol, "enrolls")
    enrolled = (
        read_first_column(listed) if listed else files.read_arrays(str(path)).utterances or []
    )
    speaker_of = dict(listed_speakers)
    if not listed_speakers:
        for arrays in (files.read_arrays(str(path)) for path in vectors.values()):
            if "speakers" in arrays.by_name:
                speaker_of |= zip(
                    arrays.utterances or [], arrays.load("speakers").tolist(), strict=True
                )
        speaker_of |= _read_listed_speakers(trial_set)
    notes: tuple[str, ...] = ()
    if not set(enrolled) <= set(speaker_of):
        utterances = {*enrolled, *(name for side in sides for name in side.utterances or ())}
        speaker_of = infer_speakers(sorted(utterances))
        if not speaker_of:
            raise InputError(
                f"expected the speakers of {enrol}, but found no {enrol}/utt2spk", lists.folder
            )
        notes = (describe_inferred_speakers(speaker_of),)
    protocol = read_protocol([lists.find_trials(trial_set.trial)], enrolled, speaker_of)
    return TrialEmbeddings(sides[0], sides[1], protocol, trial_set.name, notes)


def _read_listed_speakers(trial_set: TrialSet) -> dict[str, str]:
    speaker_of: dict[str, str] = {}
    for set_name in ("", trial_set.enrol, trial_set.trial):
        if path := trial_set.lists.find(set_name, "utt2spk"):
            speaker_of |= read_map(path)
    return speaker_of


def read_utility(
    values_or_files: Sequence[str], systems: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the utilities of each system, from ``NAME=VALUE`` of a single one or CSV with a column
    ``system``.
    """
    values: dict[str, dict[str, float]] = {system: {} for system in systems}
    for option in values_or_files:
        name, equals, text = option.partition("=")
        if equals:
            if len(systems) > 1:
                raise InputError(
                    f"Expected --utility FILE.csv for several systems, but got {quote(option)}."
                )
            values[systems[0]][name] = _parse_number(text, option)
            continue
        try:
            frame = pl.read_csv(option, infer_schema=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise InputError(
                f"cannot be read as NAME=VALUE or CSV ({describe_error(error)})", option
            ) from None
        if "system" not in frame.columns:
            raise InputError(
                f"expected a column system, but got {', '.join(frame.columns)}", option
            )
        for row in frame.to_dicts():
            system = row.pop("system")
            if system not in values:
                raise InputError(
                    f"expected one of {', '.join(systems)}, but got {quote(system)}", option
                )
            values[system] |= {
                key: _parse_number(text, option)
                for key, text in row.items()
                if text not in (None, "")
            }
    return values


def _parse_number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"Expected a number in --utility {quote(option)}, but got {quote(text)}."
        ) from None


def find_utility(folder: Path, suffix: str, dataset: str, is_alone: bool) -> dict[str, float]:
    """Return WER and UAR of protected speech from the summaries of a recipe, averaged over its
    sets.

    Summaries are in the folder, or in ``results_summary`` next to it. ``suffix`` ends the names of
    protected sets; ``dataset`` is dev, test, or empty for either. A summary need not name a system
    that ``is_alone`` in the folder.
    """
    folders = [folder, folder.parent / "results_summary", folder.parent.parent / "results_summary"]
    paths = [
        path
        for each in folders
        for name in _SUMMARIES
        for path in sorted(each.rglob(name))
        if path.is_file()
    ]
    values_by_name: dict[str, list[float]] = {}
    for path in paths:
        is_named = f"{path.parent.name}/{path.stem}".endswith(suffix) or suffix in path.parent.name
        if is_named or (is_alone and path.is_relative_to(folder)):
            read = _read_summary(path.read_text(errors="replace"), suffix, dataset)
            values_by_name = values_by_name | read | values_by_name  # the first summary counts
    return {name: sum(values) / len(values) for name, values in values_by_name.items()}


def _read_summary(text: str, suffix: str, dataset: str) -> dict[str, list[float]]:
    values_by_name: dict[str, list[float]] = defaultdict(list)
    # 2020 and 2022: a line of Kaldi below or after the name of the set; the last one has the large
    # language model.
    for _, split, system, value in _KALDI.findall(re.sub(r"\n\s+", " ", text)):
        if system == suffix.strip("_") and split == (dataset or split):
            values_by_name["WER"].append(float(value))
    # 2024 and 2026: tables as pandas prints them.
    for section, measure in (("ASR", "WER"), ("SER", "UAR")):
        table = re.search(
            rf"^---- {section} results ----\n(.*\n)((?:\s*mean.*\n)?)((?:.+\n?)*)",
            text,
            re.MULTILINE,
        )
        if table is None or measure not in table[1].split():
            continue
        heads = table[1].split()
        column = heads.index(measure) - len(heads)
        for row in map(str.split, table[3].splitlines()):
            if len(row) >= len(heads) and "anon" in row and (not dataset or dataset in row):
                values_by_name[measure].append(float(row[column]))
    return values_by_name
