"""Find recordings, their speakers, and the original of each protected one."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from unicodedata import normalize

from vpmetrics._util.scalar import printable
from vpmetrics._util.utterance_names import speaker_of_known_name
from vpmetrics.audio.reading import SUFFIXES, AudioError


class Recording(NamedTuple):
    """One audio file: the name of its utterance, its path, and its labels."""

    utterance: str
    path: Path
    speaker: str | None = None
    session: str | None = None
    group: str | None = None


class RecordingsAndAssumptions(NamedTuple):
    """Recordings, and in sentences to print, how they and their speakers were found."""

    items: tuple[Recording, ...]
    assumptions: tuple[str, ...] = ()


class RecordingPairs(NamedTuple):
    """Original and protected recordings, row by row.

    ``assumptions``: sentences to print on how pairs and speakers were found.
    """

    original: tuple[Recording, ...]
    protected: tuple[Recording, ...]
    assumptions: tuple[str, ...] = ()


def list_recordings(
    source: str | Path, *, utt2spk: str | Path | None = None, speaker_pattern: str | None = None
) -> RecordingsAndAssumptions:
    """List the recordings of a folder, a ``wav.scp`` or a manifest, with their speakers if known.

    Speakers are those of ``utt2spk`` if it is given, else what ``speaker_pattern`` finds if it is
    given, else those of the manifest or of the ``utt2spk`` next to ``wav.scp``, else a folder of
    the path (``p225/p225_001.wav``), else the first part of the file name
    (``1272-128104-0000.flac``).

    Args:
        source: A folder, searched in depth; a Kaldi ``wav.scp``, or the folder it is in; or a CSV
            or TSV file with the columns ``path`` and, if known, ``speaker``, ``utterance``,
            ``session``, ``group``, paths relative to it.
        utt2spk: File of lines ``utterance speaker``; utterances of a folder are paths without the
            ending.
        speaker_pattern: Regular expression that is searched in the utterance; the speaker is its
            group ``speaker``, or its first group, or the whole match.

    Returns:
        :class:`RecordingsAndAssumptions`, ordered by utterance; ``speaker`` is None where it cannot
        be told.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("p225_001", "p225_002", "p226_001"):
        ...     _ = (folder / f"{name}.wav").write_bytes(b"")
        >>> recordings = list_recordings(folder)
        >>> [recording.speaker for recording in recordings.items]
        ['p225', 'p225', 'p226']
        >>> print(*recordings.assumptions)
        Speakers are the first part of file names: 'p225_001' is of 'p225' (2
        speakers, 3 recordings).
    """
    source = Path(source)
    notes: list[str] = []
    if source.is_dir() and (source / "wav.scp").is_file():
        source = source / "wav.scp"
        notes.append(f"{printable(source)} was taken for the list of recordings.")
    items: Sequence[Recording] = _read_recordings(source)
    recordings_of_name = _group_by_name(items, str)
    repeated = [name for name, recordings in recordings_of_name.items() if len(recordings) > 1]
    if repeated:
        duplicates = _describe_duplicates(repeated[0], recordings_of_name[repeated[0]])
        raise AudioError(
            f"Expected utterances of different names in {printable(source)}, but {duplicates}"
            f" ({len(repeated)} names occur twice). Remove one of each, or name them in a"
            " manifest (path,speaker,utterance)."
        )
    default_file = source.with_name("utt2spk")
    is_kaldi_list = source.suffix.lower() == ".scp"
    if utt2spk is None and speaker_pattern is None and is_kaldi_list and default_file.is_file():
        utt2spk = default_file
    if utt2spk is not None:
        items = _set_speakers(items, _read_utt2spk(Path(utt2spk)))
    elif speaker_pattern is not None:
        items = _set_speakers(items, _compile_pattern(speaker_pattern))
        notes.append(_describe_speakers(f"Speakers are what {speaker_pattern!r} finds", items))
    elif any(recording.speaker is None for recording in items):
        items, assumptions = _guess_speakers(items)
        notes += assumptions
    return RecordingsAndAssumptions(tuple(items), tuple(notes))


def pair_recordings(
    original: str | Path,
    protected: str | Path,
    *,
    strip_suffix: str | None = None,
    utt2spk: str | Path | None = None,
    speaker_pattern: str | None = None,
    partial: bool = False,
) -> RecordingPairs:
    """Pair original recordings with protected ones, by relative path or else by file name.

    Names of protected recordings may be longer by a suffix, such as ``_anon``, which is found.

    Args:
        original: Folder, ``wav.scp`` or manifest of the originals; see :func:`list_recordings`.
        protected: The same of the protected recordings.
        strip_suffix: What protected names end in; by default what most of them have beyond the
            original's.
        utt2spk: File of lines ``utterance speaker`` for the originals.
        speaker_pattern: Regular expression that finds the speaker in the name of an original.
        partial: Leave out recordings that are on one side only, which is an error otherwise.

    Returns:
        :class:`RecordingPairs`; the protected recordings have the speakers of their originals.

    Raises:
        AudioError: If recordings have no partner, names are ambiguous, or speakers cannot be told.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name in ("a/p1/1", "a/p1/2", "a/p2/1", "b/p1/1_anon", "b/p1/2_anon", "b/p2/1_anon"):
        ...     (folder / name).parent.mkdir(parents=True, exist_ok=True)
        ...     _ = (folder / f"{name}.wav").write_bytes(b"")
        >>> print(pair_recordings(folder / "a", folder / "b").assumptions[1])
        Pairs are recordings of the same relative path and '_anon': 'p1/1' and 'p1/1_anon'
        (3 pairs).
    """
    if Path(original).resolve() == Path(protected).resolve():
        raise AudioError(
            f"Expected two places, but `original` and `protected` are both {printable(original)}."
        )
    originals = list_recordings(original, utt2spk=utt2spk, speaker_pattern=speaker_pattern)
    protected_ones = list_recordings(protected)
    unknown = [recording for recording in originals.items if recording.speaker is None]
    if unknown:
        raise AudioError(
            f"Expected to tell who speaks in {printable(unknown[0].path)} ({len(unknown)} of"
            f" {len(originals.items)} recordings) by a folder per speaker or names such as"
            " 'p225_001'. Give `utt2spk`, a `speaker_pattern`, or a manifest (path,speaker)."
        )
    pairs = _pair_by_path_or_name(originals.items, protected_ones.items, strip_suffix)
    notes = [*originals.assumptions, *pairs.assumptions]
    for side, items, other_side, other_items in (
        ("original", originals.items, "protected", protected_ones.items),
        ("protected", protected_ones.items, "original", originals.items),
    ):
        without_partner = _find_unpaired(items, pairs)
        if not without_partner:
            continue
        text = (
            f"{len(without_partner)} of {len(items)} {side} recordings have no {other_side} one,"
            f" first {printable(without_partner[0].path)}"
        )
        if not pairs.original:
            example = printable(other_items[0].utterance)
            text += f"; names on the other side are like {example!r}"
            raise AudioError(f"{text}. `strip_suffix` or a manifest can pair them.")
        if not partial:
            raise AudioError(f"{text}. `partial=True` leaves them out.")
        notes.append(f"{text}; they are left out.")
    labelled: list[Recording] = []
    for original_recording, protected_recording in zip(
        pairs.original, pairs.protected, strict=True
    ):
        labelled.append(_copy_labels(original_recording, protected_recording))
    return RecordingPairs(pairs.original, tuple(labelled), tuple(notes))


def _find_unpaired(items: Sequence[Recording], pairs: RecordingPairs) -> list[Recording]:
    """Return the recordings that are in no pair."""
    paired_paths = {recording.path for recording in (*pairs.original, *pairs.protected)}
    return [recording for recording in items if recording.path not in paired_paths]


def _copy_labels(original: Recording, protected: Recording) -> Recording:
    """Return a protected recording with the name and speaker of its original.

    It has the session and group of its own, or else those of its original.
    """
    return Recording(
        original.utterance,
        protected.path,
        original.speaker,
        protected.session or original.session,
        protected.group or original.group,
    )


def _file_name(utterance: str) -> str:
    return PurePosixPath(utterance).name


def _pair_by_path_or_name(
    original: Sequence[Recording], protected: Sequence[Recording], strip_suffix: str | None
) -> RecordingPairs:
    """Return the pairs by path or by file name, with or without a suffix, whatever pairs most."""
    best = RecordingPairs((), ())
    problem = ""
    keys: dict[str, Callable[[str], str]] = {"relative path": str, "file name": _file_name}
    for way, key in keys.items():
        originals_of_name = _group_by_name(original, key)
        suffixes = [strip_suffix]
        if strip_suffix is None:
            protected_names = [key(recording.utterance) for recording in protected]
            suffixes = ["", _common_suffix(originals_of_name, protected_names)]
        for suffix in dict.fromkeys(suffixes):
            protected_of_name = _group_by_name(protected, key, suffix or "")
            shared = [name for name in originals_of_name if name in protected_of_name]
            ambiguity = _find_ambiguity(shared, originals_of_name, protected_of_name)
            if ambiguity:
                problem = problem or ambiguity
            elif len(shared) > len(best.original):
                paired_originals = tuple(originals_of_name[name][0] for name in shared)
                paired_protected = tuple(protected_of_name[name][0] for name in shared)
                note = _describe_pairs(paired_originals, paired_protected, way, suffix or "")
                best = RecordingPairs(paired_originals, paired_protected, (note,))
    if not best.original and problem:
        raise AudioError(
            f"Expected one original and one protected recording of each file name, but {problem}."
            " Keep the same folders on both sides, or name utterances in a manifest"
            " (path,speaker,utterance)."
        )
    return best


def _find_ambiguity(
    names: Sequence[str],
    originals_of_name: Mapping[str, Sequence[Recording]],
    protected_of_name: Mapping[str, Sequence[Recording]],
) -> str:
    """Return a text on the first name of several recordings of a side; empty if there is none."""
    for name in names:
        for recordings in (originals_of_name[name], protected_of_name[name]):
            if len(recordings) > 1:
                return _describe_duplicates(name, recordings)
    return ""


def _describe_pairs(
    originals: Sequence[Recording], protected: Sequence[Recording], way: str, suffix: str
) -> str:
    beyond = f" and {suffix!r}" if suffix else ""
    original_name = printable(originals[0].utterance)
    protected_name = printable(protected[0].utterance)
    return (
        f"Pairs are recordings of the same {way}{beyond}: {original_name!r} and {protected_name!r}"
        f" ({len(originals)} pairs)."
    )


def _describe_duplicates(shared_name: str, recordings: Sequence[Recording]) -> str:
    paths = f"{printable(recordings[0].path)} and {printable(recordings[1].path)}"
    return f"{paths} are both {printable(shared_name)!r}"


def _group_by_name(
    items: Sequence[Recording], key: Callable[[str], str], suffix: str = ""
) -> dict[str, list[Recording]]:
    recordings_of_name: dict[str, list[Recording]] = defaultdict(list)
    for recording in items:
        recordings_of_name[key(recording.utterance).removesuffix(suffix)].append(recording)
    return recordings_of_name


def _common_suffix(originals: Container[str], protected: Sequence[str]) -> str:
    """Return what most protected names have beyond the longest original name they begin with."""
    suffixes = Counter(_find_suffix(name, originals) for name in protected)
    suffix, count = suffixes.most_common(1)[0]
    return suffix if 2 * count > len(protected) else ""


def _find_suffix(name: str, originals: Container[str]) -> str:
    """Return what a name has beyond the longest original name it begins with; empty if none."""
    for length in range(len(name), 0, -1):
        if name[:length] in originals:
            return name[length:]
    return ""


def _read_recordings(source: Path) -> list[Recording]:
    """Return the recordings of a folder, ``wav.scp`` or manifest, ordered by utterance."""
    suffix = source.suffix.lower()
    if source.is_dir():
        items = _find_recordings(source)
    elif not source.is_file():
        raise AudioError(
            f"Expected a folder, wav.scp or manifest, but there is none at {printable(source)}."
        )
    elif suffix in (".csv", ".tsv"):
        items = _read_manifest(source)
    elif suffix == ".scp":
        items = _read_scp(source)
    else:
        raise AudioError(f"Expected a folder, wav.scp, .csv or .tsv, but got {printable(source)}.")
    if not items:
        raise AudioError(
            f"Expected recordings ({', '.join(SUFFIXES)}) in {printable(source)}, but there are"
            " none."
        )
    # Accents in one form: macOS takes them apart, other systems do not.
    composed: list[Recording] = []
    for recording in items:
        name = normalize("NFC", recording.utterance)
        composed.append(recording._replace(utterance=name))
    return sorted(composed)


def _find_recordings(folder: Path) -> list[Recording]:
    """Return the recordings below a folder, called by their path in it without the ending."""
    items: list[Recording] = []
    for path in folder.rglob("*"):
        # A leading dot: macOS leaves such twins of every file on other file systems.
        if path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
            items.append(Recording(path.relative_to(folder).with_suffix("").as_posix(), path))
    return items


def _read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise AudioError(f"{printable(path)} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise AudioError(f"Expected {printable(path)} to be a text in UTF-8.") from None
    return text.splitlines()


def _read_scp(path: Path) -> list[Recording]:
    items: list[Recording] = []
    for line_number, line in enumerate(_read_lines(path), start=1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        path_text = words[-1].strip()
        if len(words) == 1 or path_text.endswith("|"):
            if len(words) == 1:
                got = "one column"
            else:
                got = "a command, which is not run"
            raise AudioError(
                f"{printable(path)}:{line_number}: expected `utterance path`, but got {got}."
            )
        # Kaldi's paths are relative to where it was started, or else to the list.
        recording_path = Path(path_text)
        if not recording_path.exists():
            recording_path = path.parent / path_text
        items.append(Recording(words[0], recording_path))
    return items


def _read_manifest(path: Path) -> list[Recording]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    rows = csv.reader(_read_lines(path), delimiter=delimiter)
    header = [name.strip().lower() for name in next(rows, [])]
    if "path" not in header or "" in header:
        raise AudioError(
            f"Expected {printable(path)} to begin with column names such as `path,speaker`, but got"
            f" {header}."
        )
    items: list[Recording] = []
    for row in rows:
        if not any(row):
            continue
        if len(row) != len(header):
            raise AudioError(
                f"{printable(path)}:{rows.line_num}: expected {len(header)} columns, but got"
                f" {len(row)}."
            )
        values: dict[str, str | None] = {}
        for name, value in zip(header, row, strict=True):
            values[name] = value.strip() or None
        path_text = values["path"] or ""
        items.append(
            Recording(
                values.get("utterance") or PurePosixPath(path_text).with_suffix("").as_posix(),
                path.parent / path_text,
                values.get("speaker"),
                values.get("session"),
                values.get("group"),
            )
        )
    return items


def _read_utt2spk(path: Path) -> Callable[[str], str | None]:
    """Return a function from an utterance, or its path, to its speaker."""
    speakers: dict[str, str] = {}
    for line_number, line in enumerate(_read_lines(path), start=1):
        words = normalize("NFC", line).split()
        if not words:
            continue
        if len(words) != 2:
            raise AudioError(
                f"{printable(path)}:{line_number}: expected `utterance speaker`, but got"
                f" {len(words)} words."
            )
        speakers[words[0]] = words[1]
    return lambda utterance: speakers.get(utterance) or speakers.get(_file_name(utterance))


def _compile_pattern(pattern: str) -> Callable[[str], str | None]:
    """Return a function from an utterance to the speaker that the pattern finds in it."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise AudioError(
            f"Expected `speaker_pattern` to be a regular expression, but {error}: {pattern!r}."
        ) from None
    group: str | int = min(expression.groups, 1)
    if "speaker" in expression.groupindex:
        group = "speaker"

    def find_speaker(utterance: str) -> str | None:
        match = expression.search(utterance)
        return None if match is None else match[group]

    return find_speaker


def _set_speakers(
    items: Sequence[Recording], speaker_of: Callable[[str], str | None]
) -> list[Recording]:
    named = [recording._replace(speaker=speaker_of(recording.utterance)) for recording in items]
    missing = [recording for recording in named if not recording.speaker]
    if missing:
        raise AudioError(
            f"Expected a speaker for every recording, but {len(missing)} of {len(named)} have none,"
            f" first {printable(missing[0].utterance)!r}."
        )
    return named


def _guess_speakers(items: Sequence[Recording]) -> RecordingsAndAssumptions:
    """Set speakers by names of a known corpus, by folder or by file name.

    There are none if nothing gives several speakers.
    """
    path_names = [PurePosixPath(recording.utterance).parts for recording in items]
    speakers = [speaker_of_known_name(names[-1]) for names in path_names]
    source = "the first part of file names"
    # A known corpus may be of a single speaker, whose chapters are folders.
    if None in speakers:
        first_words = [_first_word(names[-1]) for names in path_names]
        folders_of_items = [names[:-1] for names in path_names]
        folders_by_level = list(zip(*folders_of_items, strict=False))
        level = _find_speaker_level(folders_by_level, first_words)
        if level is not None:
            speakers = list(folders_by_level[level])
            source = f"folders (level {level + 1} of the path)"
        elif None not in first_words and 1 < len(set(first_words)) < len(items):
            speakers = first_words
        else:
            return RecordingsAndAssumptions(tuple(items))
    named: list[Recording] = []
    for recording, speaker in zip(items, speakers, strict=True):
        named.append(recording._replace(speaker=speaker))
    return RecordingsAndAssumptions(
        tuple(named), (_describe_speakers(f"Speakers are {source}", named),)
    )


def _first_word(file_name: str) -> str | None:
    """Return the letters and digits before a separator; None if a name has none."""
    match = re.match(r"([^\W_]+)[-_.]", file_name)
    return None if match is None else match[1]


def _find_speaker_level(
    folders_by_level: Sequence[Sequence[str]], first_words: Sequence[str | None]
) -> int | None:
    """Return the level of folders that differ between recordings, and are not one for each.

    In ``train/p225/p225_001.wav`` two folders differ; the one that file names begin with is the
    speaker.
    """
    levels: list[int] = []
    for level, folders in enumerate(folders_by_level):
        if 1 < len(set(folders)) < len(folders):
            levels.append(level)
    for level in levels:
        if list(folders_by_level[level]) == list(first_words):
            return level
    return levels[0] if levels else None


def _describe_speakers(text: str, items: Sequence[Recording]) -> str:
    num_speakers = len({recording.speaker for recording in items})
    example = f"{printable(items[0].utterance)!r} is of {printable(items[0].speaker)!r}"
    return f"{text}: {example} ({num_speakers} speakers, {len(items)} recordings)."
