"""Results of the VoicePrivacy challenges as their recipes leave them in a folder.

2020 and 2022: ``ASV-libri_test_enrolls-libri_test_trials_f_anon/scores``, and the trials of each
set. 2024 and 2026: ``emb_xvect/libri_test_trials_f_anon/utt-level/speaker_vectors.pt`` with
``id2idx``, and the lists of each set.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    "libri_f": 0.25,
    "libri_m": 0.25,
    "vctk_f": 0.2,
    "vctk_m": 0.2,
    "vctk_f_common": 0.05,
    "vctk_m_common": 0.05,
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
    """A set of trials, with its files.

    ``enrol``, ``trial``: names of the folders of enrolment and of test utterances. ``vectors``:
    files of embeddings by the name of the folder, ``scores``: files of scores by condition.
    ``lists``: where the trials, enrolments and speakers are listed.
    """

    name: str
    enrol: str
    trial: str
    vectors: Mapping[str, Path]
    scores: Mapping[str, Path]
    lists: RecipeLists


class ChallengeResult(NamedTuple):
    """The result files of one anonymiser on one part of the data, against one attacker.

    ``dataset``: ``dev`` or ``test``, empty for either. ``suffix``: end of the names of protected
    sets. ``encoders``: number of encoders that embedded the sets.
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
        sets = self.trial_sets
        has_scores = all({"OP", "PP"} & trial_set.scores.keys() for trial_set in sets)
        has_vectors = all(trial_set.trial + self.suffix in trial_set.vectors for trial_set in sets)
        return has_scores and not has_vectors

    @property
    def pooled_sets(self) -> tuple[str, ...]:
        """Names of the sets that are pooled: those of mixed sex, which hold the others, or all."""
        names = tuple(trial_set.name for trial_set in self.trial_sets)
        mixed_names = tuple(name for name in names if name.endswith("_mixed"))
        return mixed_names or names

    @property
    def official_weights(self) -> dict[str, float]:
        """Weights of the sets in the averages of the challenge; empty if any has none."""
        names = self.pooled_sets
        if all(name.endswith("_mixed") for name in names):
            return dict.fromkeys(names, 1 / len(names))
        weights: dict[str, float] = {}
        for name in names:
            weight = _WEIGHTS.get(re.sub(r"_(dev|test)", "", name))
            if weight is None:
                return {}
            weights[name] = weight
        return weights

    @property
    def challenge_condition_names(self) -> dict[str, str]:
        """Name of each condition in the challenges."""
        suffixes = {_ORIGINAL_ATTACKER: ", lazy-informed", _PROTECTED_ATTACKER: ", semi-informed"}
        ignorant = ", ignorant"
        if self.attacker == _PROTECTED_ATTACKER:
            ignorant = ""
        return {"OO": "OO", "OP": f"OA{ignorant}", "PP": f"AA{suffixes.get(self.attacker, '')}"}


class RecipeLists:
    """Lists of trials, enrolments and speakers of a recipe.

    They are in the folder of results, or in ``data`` of the recipe it is in.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        roots = [folder]
        for parent in list(folder.resolve().parents)[:4]:
            data = parent / "data"
            if data.is_dir():
                roots.append(data)
        self._paths: list[Path] = []
        for root in roots:
            for path in sorted(root.rglob("*")):
                is_list = path.name.startswith(("trials", "enrolls", "utt2spk"))
                if is_list and path.suffix == "" and path.is_file():
                    self._paths.append(path)

    def find(self, set_name: str, kind: str) -> Path | None:
        """Return the list of a set: ``libri_test_trials_f/trials`` or ``libri_test/trials_f``.

        Either name may also stand in the folder itself.
        """
        paths = [path for path in self._paths if path.name.startswith(kind)]
        in_folder = [path for path in paths if path.parent == self.folder]
        of_set = [path for path in paths if (path.parent.name, path.name) == (set_name, kind)]
        of_base = [path for path in paths if f"{path.parent.name}_{path.name}" == set_name]
        of_subset = [path for path in in_folder if set_name.endswith(f"_{path.name}")]
        of_folder = [path for path in in_folder if path.name == kind]
        by_preference = [*of_set, *of_base, *of_subset, *of_folder]
        return by_preference[0] if by_preference else None

    def find_trials(self, set_name: str) -> Path:
        """Return the list of the trials of a set; raise if there is none."""
        path = self.find(set_name, "trials")
        if path is None:
            raise InputError(
                f"expected the trials of {set_name}, but found no {set_name}/trials", self.folder
            )
        return path


def find_score_and_vector_files(folder: Path) -> list[ChallengeResult]:
    """List the results in a folder without reading them: one per anonymiser, dataset and attacker.

    Entries that share all three get their folder in the field ``system``.
    """
    lists = RecipeLists(folder)
    results: list[ChallengeResult] = []
    for root, files in find_encoders(folder).items():
        results += _list_results(root, files, lists)
    if not results:
        expected = (
            "ASV-<set>_enrolls-<set>_trials_<sex>_<system>/scores, or speaker_vectors.pt below such"
            " names"
        )
        raise InputError(
            f"expected results of a VoicePrivacy challenge ({expected}), but got none", folder
        )
    joined = _join_results(results)
    counts = Counter(_result_key(result) for result in joined)
    named: list[ChallengeResult] = []
    for result in joined:
        if counts[_result_key(result)] > 1:
            relative_folder = result.folder.relative_to(folder).as_posix()
            result = result._replace(system=f"{result.system}, {relative_folder}")
        named.append(result)
    return named


def _result_key(result: ChallengeResult) -> tuple[str, str, str]:
    """Return what a user calls a result by."""
    return result.system, result.dataset, result.attacker


def _join_results(results: Sequence[ChallengeResult]) -> list[ChallengeResult]:
    """Join results of one system, dataset and attacker on different sets.

    Such are languages with an encoder each. Against attackers on original speech, only results in
    one folder are joined.
    """
    joined: dict[tuple[str, ...], ChallengeResult] = {}
    for result in results:
        key_with_folder = (*_result_key(result), str(result.folder))
        key: tuple[str, ...] = key_with_folder
        if result.attacker == _PROTECTED_ATTACKER:
            key = _result_key(result)
        former = joined.get(key)
        if former is None:
            joined[key] = result
            continue
        former_names = {trial_set.name for trial_set in former.trial_sets}
        if former_names.intersection(trial_set.name for trial_set in result.trial_sets):
            joined[key_with_folder] = result
        else:
            trial_sets = former.trial_sets + result.trial_sets
            joined[key] = result._replace(trial_sets=trial_sets, encoders=former.encoders + 1)
    return list(joined.values())


def find_encoders(folder: Path) -> dict[Path, _EncoderFiles]:
    """Return the files of a challenge by folder of an encoder, or of a run of a recipe.

    Such a folder has one subfolder per set.
    """
    encoders: dict[Path, _EncoderFiles] = defaultdict(dict)
    vector_files: list[Path] = []
    for name in _VECTOR_FILES:
        vector_files += sorted(folder.rglob(name))
    for path in vector_files:
        if path.parent.name == "spk-level" or path.parent.name.startswith("temp"):
            continue
        set_folder = path.parent
        if set_folder.name == "utt-level":
            set_folder = set_folder.parent
        set_name = set_folder.name.removeprefix("xvect_")  # of some recipes
        if not re.fullmatch(".+_(enrolls|trials).*", set_name):
            continue
        encoder_folder = set_folder.parent
        if encoder_folder.name == "emb_xvect" and encoder_folder != folder:
            encoder_folder = encoder_folder.parent
        encoders[encoder_folder].setdefault((set_name,), path)
    for path in sorted(folder.rglob("scores*")):
        match = _SCORE_FOLDER.fullmatch(path.parent.name)
        if match and path.name in ("scores", "scores.gz"):
            encoders[path.parent.parent][match["enrol"], match["trial"]] = path
    return encoders


def _find_attacker_encoder(root: Path) -> Literal["ASV_eval", "ASV_eval^anon", ""]:
    """Return the attacker's encoder by names of folders; empty if unknown.

    It was trained on original or on protected speech.
    """
    parents = list(root.resolve().parents)[:3]
    for folder in (root, *parents):
        name = folder.name.lower()
        if "asv_anon" in name or "asv_eval_anon" in name:
            return _PROTECTED_ATTACKER
        if re.search(r"asv_(orig|ssl|eval)", name) or name.endswith(".orig"):
            return _ORIGINAL_ATTACKER
    return ""


def _anonymiser_suffix(name: str) -> str:
    """Return the end of the name of a protected set, its anonymiser; empty for original speech."""
    _, list_kind, subset_and_suffix = re.split("(_enrolls|_trials)", name, maxsplit=1)
    if list_kind == "_enrolls":
        return subset_and_suffix
    subset = _SUBSETS.match(subset_and_suffix)
    if subset is None:
        return subset_and_suffix
    return subset_and_suffix[subset.end() :]


def _list_results(root: Path, files: _EncoderFiles, lists: RecipeLists) -> list[ChallengeResult]:
    """Return the results of one encoder: one of each anonymiser and dataset."""
    suffixes: set[str] = set()
    originals: set[str] = set()
    for set_names in files:
        for name in set_names:
            suffix = _anonymiser_suffix(name)
            suffixes.add(suffix)
            if "_trials" in name:
                originals.add(name.removesuffix(suffix))
    sets_of_result: dict[tuple[str, str], list[TrialSet]] = defaultdict(list)
    for suffix, trial in product(sorted(suffixes - {""}), sorted(originals)):
        trial_set = _find_trial_set(trial, suffix, files, lists)
        if trial_set is not None:
            sets_of_result[suffix, _find_dataset(trial)].append(trial_set)
    attacker = _find_attacker_encoder(root)
    results: list[ChallengeResult] = []
    for (suffix, dataset), trial_sets in sets_of_result.items():
        system = suffix.strip("_-")
        results.append(ChallengeResult(system, dataset, attacker, root, suffix, tuple(trial_sets)))
    return results


def _find_dataset(trial: str) -> str:
    """Return ``dev`` or ``test`` by the name of a set; empty if it says neither."""
    words = trial.partition("_trials")[0].split("_")
    if "dev" in words:
        return "dev"
    return "test" if "test" in words else ""


def _find_trial_set(
    trial: str, suffix: str, files: _EncoderFiles, lists: RecipeLists
) -> TrialSet | None:
    """Return the files of a set of trials and an anonymiser; None where protected speech has none.

    Sets that join others, ``_all``, are left out.
    """
    base, _, subset = trial.partition("_trials")
    if subset.endswith("_all"):
        return None
    enrol = f"{base}_enrolls"
    names_of_condition = {
        "OO": (enrol, trial),
        "OP": (enrol, trial + suffix),
        "PP": (enrol + suffix, trial + suffix),
    }
    vectors: dict[str, Path] = {}
    scores: dict[str, Path] = {}
    for condition, set_names in names_of_condition.items():
        for name in set_names:
            if (name,) in files:
                vectors[name] = files[name,]
        if set_names in files:
            scores[condition] = files[set_names]
    if trial + suffix not in vectors and not {"OP", "PP"} & set(scores):
        return None
    return TrialSet(base + subset, enrol, trial, vectors, scores, lists)


@dataclass
class _SetsRead:
    """What was read of the sets of a result so far."""

    trials_by_set: dict[str, Mapping[str, Trials]] = field(default_factory=dict)
    speaker_of: dict[str, str] = field(default_factory=dict)
    embeddings: list[TrialEmbeddings] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def trials_by_condition(self) -> dict[str, Trials]:
        """Return the trials of all sets together, with the name of their set as ``group``."""
        columns = ("enrol", "trial", "score", "is_target")
        trials: dict[str, Trials] = {}
        for condition in WITHOUT_SESSIONS:
            frames: list[pl.DataFrame] = []
            notes: list[str] = []
            for set_name, trials_of_set in self.trials_by_set.items():
                if condition in trials_of_set:
                    scored = trials_of_set[condition]
                    frames.append(scored.frame.select(*columns, group=pl.lit(set_name)))
                    notes += scored.notes
            if frames:
                trials[condition] = Trials(pl.concat(frames), tuple(notes))
        return trials


def read_listed_trials(
    result: ChallengeResult, scoring: Scoring, utt2spk: str | None = None
) -> tuple[ListedTrials, list[TrialEmbeddings]]:
    """Return the scored trials of all sets of a result, and the embeddings for attacks.

    Trials are scored by comparing embeddings. Where some sets have no embeddings, the scores of all
    sets are read from score files, and there are no embeddings for attacks. ``utt2spk``: a file
    with the speaker of each utterance, instead of those next to the results.
    """
    listed_speakers: dict[str, str] = {}
    if utt2spk is not None:
        listed_speakers = read_map(utt2spk)
    sets_read = _SetsRead()
    for trial_set in result.trial_sets:
        if result.is_read_from_scores:
            _add_scored_set(sets_read, trial_set, listed_speakers)
        else:
            _add_embedded_set(sets_read, trial_set, result, scoring, listed_speakers)
    notes = _keep_first_notes_on_speakers(sets_read.notes)
    if result.encoders > 1:
        notes.append(
            f"its sets were compared by {result.encoders} encoders, so read the average of sets,"
            " not the pooled trials"
        )
    if result.is_read_from_scores:
        notes.append("no DeID and no G_VD: they need embeddings, and the folder has only scores")
    set_names = tuple(sets_read.trials_by_set)
    listed = ListedTrials(
        sets_read.trials_by_condition(),
        sets_read.speaker_of,
        groups=set_names,
        notes=tuple(notes),
        pooled_groups=result.pooled_sets,
    )
    return listed, sets_read.embeddings


def _add_scored_set(
    sets_read: _SetsRead, trial_set: TrialSet, listed_speakers: Mapping[str, str]
) -> None:
    """Add the trials of a set from its score files to ``sets_read``, with labels and speakers.

    Labels that score files lack are in the list of trials, the key. Speakers are the listed ones,
    else those in the lists of the set, else they are inferred from the names of test utterances.
    """
    scores = {condition: read_scores(path) for condition, path in trial_set.scores.items()}
    key = None
    if not all("is_target" in scored.frame.columns for scored in scores.values()):
        key = read_key(trial_set.lists.find_trials(trial_set.trial))
    labelled = {condition: label_trials(scored, key) for condition, scored in scores.items()}
    sets_read.trials_by_set[trial_set.name] = labelled

    speaker_of = dict(listed_speakers)
    if not speaker_of:
        speaker_of = _read_listed_speakers(trial_set)
    if not speaker_of:
        test_utterances: set[str] = set()
        for scored in scores.values():
            test_utterances.update(scored.frame["trial"].unique().to_list())
        speaker_of = infer_speakers(sorted(test_utterances))
        if speaker_of:
            sets_read.notes.append(describe_inferred_speakers(speaker_of))
    sets_read.speaker_of |= speaker_of


def _add_embedded_set(
    sets_read: _SetsRead,
    trial_set: TrialSet,
    result: ChallengeResult,
    scoring: Scoring,
    listed_speakers: Mapping[str, str],
) -> None:
    """Read the embeddings of a set, and score its trials."""
    embeddings = _read_trial_embeddings(trial_set, result.suffix, listed_speakers)
    protocol = embeddings.protocol
    listed = score_protocol(embeddings.original, embeddings.protected, protocol, scoring)
    if trial_set.name in result.pooled_sets:
        sets_read.embeddings.append(embeddings)
    sets_read.trials_by_set[trial_set.name] = listed.trials
    sets_read.speaker_of |= protocol.speaker_of
    sets_read.notes += [*embeddings.notes, *listed.notes]


def _keep_first_notes_on_speakers(notes: Sequence[str]) -> list[str]:
    """Return the notes with that on inferred speakers once, not for every set."""
    kept_notes: list[str] = []
    is_said = False
    for note in notes:
        is_on_speakers = note.startswith(INFERRED_SPEAKERS)
        if not (is_on_speakers and is_said):
            kept_notes.append(note)
        is_said = is_said or is_on_speakers
    return kept_notes


def _read_trial_embeddings(
    trial_set: TrialSet, suffix: str, listed_speakers: Mapping[str, str]
) -> TrialEmbeddings:
    """Read both sides of a set, its trials and its speakers."""
    files = EmbeddingFiles()
    original = _read_set_side(files, trial_set, "")
    protected = _read_set_side(files, trial_set, suffix)
    # A speaker is enrolled with the mean of their utterances in the enrolment set.
    enrol = trial_set.enrol
    vectors = trial_set.vectors
    lists = trial_set.lists
    path = vectors.get(enrol) or vectors.get(enrol + suffix)
    if path is None:
        raise InputError(
            f"expected embeddings of {enrol}, but found no {VECTOR_FILE}", lists.folder
        )
    list_of_enrolment = lists.find(enrol, "enrolls")
    if list_of_enrolment is None:
        enrolled = files.read_arrays(str(path)).utterances or []
    else:
        enrolled = read_first_column(list_of_enrolment)
    speaker_of = dict(listed_speakers)
    if not listed_speakers:
        speaker_of = _read_stored_speakers(files, vectors) | _read_listed_speakers(trial_set)
    notes: tuple[str, ...] = ()
    if not set(enrolled) <= set(speaker_of):
        utterances = {*enrolled, *(original.utterances or ()), *(protected.utterances or ())}
        speaker_of = infer_speakers(sorted(utterances))
        if not speaker_of:
            raise InputError(
                f"expected the speakers of {enrol}, but found no {enrol}/utt2spk", lists.folder
            )
        notes = (describe_inferred_speakers(speaker_of),)
    protocol = read_protocol([lists.find_trials(trial_set.trial)], enrolled, speaker_of)
    return TrialEmbeddings(original, protected, protocol, trial_set.name, notes)


def _read_set_side(files: EmbeddingFiles, trial_set: TrialSet, suffix: str) -> Column:
    """Return the embeddings of one side of a set, enrolment and tests; without rows if none."""
    columns: list[Column] = []
    # PP needs no original speech: the attacker protects the enrolment, too.
    for set_name in (trial_set.enrol + suffix, trial_set.trial + suffix):
        path = trial_set.vectors.get(set_name)
        if path is not None:
            columns.append(files.read_column(str(path), "original"))
    if columns:
        return merge_columns_by_utterance(columns)
    source = f"{trial_set.trial}{suffix}/{VECTOR_FILE}, which is not there"
    return Column(np.zeros((0, 0)), [], source)


def _read_stored_speakers(files: EmbeddingFiles, vectors: Mapping[str, Path]) -> dict[str, str]:
    """Return the speakers of utterances that files of embeddings have themselves."""
    speaker_of: dict[str, str] = {}
    for path in vectors.values():
        arrays = files.read_arrays(str(path))
        if "speakers" in arrays.by_name:
            speakers = arrays.load("speakers").tolist()
            speaker_of |= zip(arrays.utterances or [], speakers, strict=True)
    return speaker_of


def _read_listed_speakers(trial_set: TrialSet) -> dict[str, str]:
    """Return the speakers in the lists of a set, if any."""
    speaker_of: dict[str, str] = {}
    for set_name in ("", trial_set.enrol, trial_set.trial):
        path = trial_set.lists.find(set_name, "utt2spk")
        if path is not None:
            speaker_of |= read_map(path)
    return speaker_of


def read_utility(
    values_or_files: Sequence[str], systems: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the utilities of each system, by name.

    They are given as ``NAME=VALUE`` of a single one, or as CSV with a column ``system``.
    """
    values: dict[str, dict[str, float]] = {system: {} for system in systems}
    for option in values_or_files:
        name, equals, text = option.partition("=")
        if not equals:
            _add_utility_table(values, option)
        elif len(systems) > 1:
            raise InputError(
                f"Expected --utility FILE.csv for several systems, but got {quote(option)}."
            )
        else:
            values[systems[0]][name] = _parse_number(text, option)
    return values


def _add_utility_table(values: dict[str, dict[str, float]], path: str) -> None:
    """Add the utilities in a table with a column ``system`` to those of each system."""
    try:
        frame = pl.read_csv(path, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"cannot be read as NAME=VALUE or CSV ({describe_error(error)})", path
        ) from None
    if "system" not in frame.columns:
        raise InputError(f"expected a column system, but got {', '.join(frame.columns)}", path)
    for row in frame.to_dicts():
        system = row.pop("system")
        if system not in values:
            raise InputError(f"expected one of {', '.join(values)}, but got {quote(system)}", path)
        for name, text in row.items():
            if text not in (None, ""):
                values[system][name] = _parse_number(text, path)


def _parse_number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"Expected a number in --utility {quote(option)}, but got {quote(text)}."
        ) from None


def find_utility(folder: Path, suffix: str, dataset: str, is_alone: bool) -> dict[str, float]:
    """Return WER and UAR of protected speech from a recipe's summaries, averaged over its sets.

    Summaries are in the folder, or in ``results_summary`` next to it. ``suffix`` ends the names of
    protected sets; ``dataset`` is dev, test, or empty for either. A summary need not name a system
    that ``is_alone`` in the folder.
    """
    folders = [folder, folder.parent / "results_summary", folder.parent.parent / "results_summary"]
    values_by_name: dict[str, list[float]] = {}
    for summary_folder in folders:
        for pattern in _SUMMARIES:
            for path in sorted(summary_folder.rglob(pattern)):
                name = f"{path.parent.name}/{path.stem}"
                is_named = name.endswith(suffix) or suffix in path.parent.name
                is_of_system = is_named or (is_alone and path.is_relative_to(folder))
                if not is_of_system or not path.is_file():
                    continue
                summary = _read_summary(path.read_text(errors="replace"), suffix, dataset)
                for measure, values in summary.items():
                    values_by_name.setdefault(measure, values)  # the first summary counts
    return {name: sum(values) / len(values) for name, values in values_by_name.items()}


def _read_summary(text: str, suffix: str, dataset: str) -> dict[str, list[float]]:
    """Return WER and UAR of each set of protected speech in a summary, by measure."""
    values_by_name: dict[str, list[float]] = defaultdict(list)
    # 2020 and 2022: a line of Kaldi below or after the name of the set; the last one has the large
    # language model.
    for _, split, system, value in _KALDI.findall(re.sub(r"\n\s+", " ", text)):
        if system == suffix.strip("_") and split == (dataset or split):
            values_by_name["WER"].append(float(value))
    # 2024 and 2026: tables as pandas prints them.
    for section, measure in (("ASR", "WER"), ("SER", "UAR")):
        values = _read_summary_table(text, section, measure, dataset)
        if values:
            values_by_name[measure] += values
    return values_by_name


def _read_summary_table(text: str, section: str, measure: str, dataset: str) -> list[float]:
    """Return a measure of each set of protected speech in a section, a table as of pandas."""
    table = re.search(
        rf"^---- {section} results ----\n(?P<headings>.*\n)((?:\s*mean.*\n)?)(?P<rows>(?:.+\n?)*)",
        text,
        re.MULTILINE,
    )
    if table is None:
        return []
    headings = table["headings"].split()
    if measure not in headings:
        return []
    column = headings.index(measure) - len(headings)  # from the end: rows begin with an index
    values: list[float] = []
    for line in table["rows"].splitlines():
        fields = line.split()
        is_row = len(fields) >= len(headings)
        if is_row and "anon" in fields and (not dataset or dataset in fields):
            values.append(float(fields[column]))
    return values
