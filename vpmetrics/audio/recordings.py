"""Find recordings, their speakers, and the original of each protected one."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
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
    """Original and protected recordings, row by row, and in sentences to print, how pairs and
    speakers were found.
    """

    original: tuple[Recording, ...]
    protected: tuple[Recording, ...]
    assumptions: tuple[str, ...] = ()


def list_recordings(
    source: str | Path, *, utt2spk: str | Path | None = None, speaker_pattern: str | None = None
) -> RecordingsAndAssumptions:
    """List the recordings of a folder, a ``wav.scp`` or a manifest, with their speakers where these
    can be told.

    Speakers are those of the manifest or of ``utt2spk``, else what ``speaker_pattern`` finds, else
    a folder of the path (``p225/p225_001.wav``), else the first part of the file name
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
    duplicates = [row for row in _group_by_name(items, str).items() if len(row[1]) > 1]
    if duplicates:
        first = _describe_duplicates(*duplicates[0])
        raise AudioError(
            f"Expected utterances of different names in {printable(source)}, but {first}"
            f" ({len(duplicates)} names occur twice). Remove one of each, or name them in a"
            " manifest (path,speaker,utterance)."
        )
    default_file = source.with_name("utt2spk")
    if utt2spk is None and source.suffix.lower() == ".scp" and default_file.is_file():
        utt2spk = default_file
    if utt2spk is not None:
        items = _set_speakers(items, _read_utt2spk(Path(utt2spk)))
    elif speaker_pattern is not None:
        items = _set_speakers(items, _compile_pattern(speaker_pattern))
        notes.append(_describe_speakers(f"Speakers are what {speaker_pattern!r} finds", items))
    elif any(one.speaker is None for one in items):
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
    """Pair original recordings with their protected versions, by relative path or else by file
    name.

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
    left = list_recordings(original, utt2spk=utt2spk, speaker_pattern=speaker_pattern)
    right = list_recordings(protected)
    unknown = [one for one in left.items if one.speaker is None]
    if unknown:
        raise AudioError(
            f"Expected to tell who speaks in {printable(unknown[0].path)} ({len(unknown)} of"
            f" {len(left.items)} recordings) by a folder per speaker or names such as 'p225_001'."
            " Give `utt2spk`, a `speaker_pattern`, or a manifest (path,speaker)."
        )
    pairs = _pair_by_path_or_name(left.items, right.items, strip_suffix)
    notes = list(pairs.assumptions)
    paired = {one.path for one in (*pairs.original, *pairs.protected)}
    for side, other, items, others in (
        ("original", "protected", left.items, right.items),
        ("protected", "original", right.items, left.items),
    ):
        alone = [one for one in items if one.path not in paired]
        if not alone:
            continue
        text = (
            f"{len(alone)} of {len(items)} {side} recordings have no {other} one, first"
            f" {printable(alone[0].path)}"
        )
        if not pairs.original:
            text += f"; names on the other side are like {printable(others[0].utterance)!r}"
            raise AudioError(f"{text}. `strip_suffix` or a manifest can pair them.")
        if not partial:
            raise AudioError(f"{text}. `partial=True` leaves them out.")
        notes.append(f"{text}; they are left out.")
    protected_items = tuple(
        Recording(
            one.utterance, two.path, one.speaker, two.session or one.session, two.group or one.group
        )
        for one, two in zip(pairs.original, pairs.protected, strict=True)
    )
    return RecordingPairs(pairs.original, protected_items, (*left.assumptions, *notes))


def _pair_by_path_or_name(
    original: Sequence[Recording], protected: Sequence[Recording], strip_suffix: str | None
) -> RecordingPairs:
    """Return the pairs by path or by file name, with or without a suffix: the way that gives the
    most pairs.
    """
    best, problem = RecordingPairs((), ()), ""
    for way, key in (("relative path", str), ("file name", lambda name: PurePosixPath(name).name)):
        originals = _group_by_name(original, key)
        common_suffix = _common_suffix(originals, [key(two.utterance) for two in protected])
        for suffix in dict.fromkeys(
            ("", common_suffix) if strip_suffix is None else (strip_suffix,)
        ):
            matched = _group_by_name(protected, key, suffix)
            shared = {
                name: (originals[name], matched[name]) for name in originals if name in matched
            }
            ambiguous = [
                (name, side) for name, sides in shared.items() for side in sides if len(side) > 1
            ]
            if ambiguous:
                problem = problem or _describe_duplicates(*ambiguous[0])
            elif len(shared) > len(best.original):
                left, right = (
                    tuple(one for (one,) in side) for side in zip(*shared.values(), strict=True)
                )
                beyond = f" and {suffix!r}" if suffix else ""
                first_pair = " and ".join(
                    repr(printable(one.utterance)) for one in (left[0], right[0])
                )
                note = (
                    f"Pairs are recordings of the same {way}{beyond}: {first_pair} ({len(left)}"
                    " pairs)."
                )
                best = RecordingPairs(left, right, (note,))
    if not best.original and problem:
        raise AudioError(
            f"Expected one original and one protected recording of each file name, but {problem}."
            " Keep the same folders on both sides, or name utterances in a manifest"
            " (path,speaker,utterance)."
        )
    return best


def _describe_duplicates(shared_name: str, recordings: Sequence[Recording]) -> str:
    first, second = (printable(one.path) for one in recordings[:2])
    return f"{first} and {second} are both {printable(shared_name)!r}"


def _group_by_name(
    items: Sequence[Recording], key: Callable[[str], str], suffix: str = ""
) -> dict[str, list[Recording]]:
    groups: dict[str, list[Recording]] = defaultdict(list)
    for one in items:
        groups[key(one.utterance).removesuffix(suffix)].append(one)
    return groups


def _common_suffix(originals: Container[str], protected: Sequence[str]) -> str:
    """Return what most protected names have beyond the longest original name they begin with."""
    suffixes = Counter(
        next((name[size:] for size in range(len(name), 0, -1) if name[:size] in originals), "")
        for name in protected
    )
    suffix, count = suffixes.most_common(1)[0]
    return suffix if 2 * count > len(protected) else ""


def _read_recordings(source: Path) -> list[Recording]:
    if source.is_dir():
        items = [
            Recording(path.relative_to(source).with_suffix("").as_posix(), path)
            for path in source.rglob("*")
            # A leading dot: macOS leaves such twins of every file on other file systems.
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        ]
    elif not source.is_file():
        raise AudioError(
            f"Expected a folder, wav.scp or manifest, but there is none at {printable(source)}."
        )
    elif source.suffix.lower() in (".csv", ".tsv"):
        items = _read_manifest(source)
    elif source.suffix.lower() == ".scp":
        items = _read_scp(source)
    else:
        raise AudioError(f"Expected a folder, wav.scp, .csv or .tsv, but got {printable(source)}.")
    if not items:
        raise AudioError(
            f"Expected recordings ({', '.join(SUFFIXES)}) in {printable(source)}, but there are"
            " none."
        )
    # Accents in one form: macOS takes them apart, other systems do not.
    return sorted(one._replace(utterance=normalize("NFC", one.utterance)) for one in items)


def _read_lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise AudioError(f"{printable(path)} cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError:
        raise AudioError(f"Expected {printable(path)} to be a text in UTF-8.") from None
    return text.splitlines()


def _read_scp(path: Path) -> list[Recording]:
    items = []
    for number, line in enumerate(_read_lines(path), start=1):
        words = line.split(maxsplit=1)
        if not words:
            continue
        utterance, place = words[0], words[-1].strip()
        if len(words) == 1 or place.endswith("|"):
            got = "one column" if len(words) == 1 else "a command, which is not run"
            raise AudioError(
                f"{printable(path)}:{number}: expected `utterance path`, but got {got}."
            )
        # Kaldi's paths are relative to where it was started, or else to the list.
        items.append(
            Recording(utterance, Path(place) if Path(place).exists() else path.parent / place)
        )
    return items


def _read_manifest(path: Path) -> list[Recording]:
    lines = csv.reader(_read_lines(path), delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
    header = [name.strip().lower() for name in next(lines, [])]
    if "path" not in header or "" in header:
        raise AudioError(
            f"Expected {printable(path)} to begin with column names such as `path,speaker`, but got"
            f" {header}."
        )
    items = []
    for row in filter(any, lines):
        if len(row) != len(header):
            raise AudioError(
                f"{printable(path)}:{lines.line_num}: expected {len(header)} columns, but got"
                f" {len(row)}."
            )
        values = {name: value.strip() or None for name, value in zip(header, row, strict=True)}
        place = values["path"] or ""
        name = values.get("utterance") or PurePosixPath(place).with_suffix("").as_posix()
        rest = {column: values.get(column) for column in ("speaker", "session", "group")}
        items.append(Recording(name, path.parent / place, **rest))
    return items


def _read_utt2spk(path: Path) -> Callable[[str], str | None]:
    """Return a function from an utterance, or its path, to its speaker."""
    lines = [normalize("NFC", line).split() for line in _read_lines(path)]
    for number, words in enumerate(lines, start=1):
        if len(words) not in (0, 2):
            raise AudioError(
                f"{printable(path)}:{number}: expected `utterance speaker`, but got {len(words)}"
                " words."
            )
    speakers = dict(filter(None, lines))
    return lambda utterance: speakers.get(utterance) or speakers.get(PurePosixPath(utterance).name)


def _compile_pattern(pattern: str) -> Callable[[str], str | None]:
    """Return a function from an utterance to the speaker that the pattern finds in it."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise AudioError(
            f"Expected `speaker_pattern` to be a regular expression, but {error}: {pattern!r}."
        ) from None
    group: str | int = (
        "speaker" if "speaker" in expression.groupindex else min(expression.groups, 1)
    )
    return lambda utterance: match[group] if (match := expression.search(utterance)) else None


def _set_speakers(
    items: Sequence[Recording], speaker_of: Callable[[str], str | None]
) -> list[Recording]:
    named = [one._replace(speaker=speaker_of(one.utterance)) for one in items]
    missing = [one for one in named if not one.speaker]
    if missing:
        raise AudioError(
            f"Expected a speaker for every recording, but {len(missing)} of {len(named)} have none,"
            f" first {printable(missing[0].utterance)!r}."
        )
    return named


def _guess_speakers(items: Sequence[Recording]) -> RecordingsAndAssumptions:
    """Set speakers by names of a known corpus, by folder or by file name; none if nothing gives
    several speakers.
    """
    parts = [PurePosixPath(one.utterance).parts for one in items]
    known = [speaker_of_known_name(names[-1]) for names in parts]
    if None not in known:  # even of a single speaker, whose chapters are folders
        named_items = tuple(
            one._replace(speaker=speaker) for one, speaker in zip(items, known, strict=True)
        )
        text = _describe_speakers("Speakers are the first part of file names", named_items)
        return RecordingsAndAssumptions(named_items, (text,))
    matches = [re.match(r"([^\W_]+)[-_.]", names[-1]) for names in parts]
    words = [match and match[1] for match in matches]
    columns = [list(column) for column in zip(*(names[:-1] for names in parts), strict=False)]
    levels = [level for level, column in enumerate(columns) if 1 < len(set(column)) < len(items)]
    # In train/p225/p225_001.wav two folders differ; the one that file names begin with is the
    # speaker.
    levels.sort(key=lambda level: columns[level] != words)
    if levels:
        speakers, text = (
            columns[levels[0]],
            f"Speakers are folders (level {levels[0] + 1} of the path)",
        )
    elif None not in words and 1 < len(set(words)) < len(items):
        speakers, text = words, "Speakers are the first part of file names"
    else:
        return RecordingsAndAssumptions(tuple(items))
    named_items = tuple(
        one._replace(speaker=speaker) for one, speaker in zip(items, speakers, strict=True)
    )
    return RecordingsAndAssumptions(named_items, (_describe_speakers(text, named_items),))


def _describe_speakers(text: str, items: Sequence[Recording]) -> str:
    first, count = items[0], len({one.speaker for one in items})
    return (
        f"{text}: {printable(first.utterance)!r} is of {printable(first.speaker)!r} "
        f"({count} speakers, {len(items)} recordings)."
    )
