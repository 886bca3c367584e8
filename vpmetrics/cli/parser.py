"""The commands and their help. Nothing here imports torch, so that ``--help`` is quick."""

from __future__ import annotations

import difflib
import re
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    Namespace,
    RawDescriptionHelpFormatter,
    _ArgumentGroup,
)
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from vpmetrics import __version__
from vpmetrics.cli.options import (
    CONFIDENCE,
    ChallengeOptions,
    CompareOptions,
    DemoOptions,
    EmbedOptions,
    EvaluateOptions,
    ScoresOptions,
)

_EVALUATE = """\
Evaluate one anonymiser: the same utterances before and after protection, as
folders of recordings or files of embeddings.

  vpmetrics evaluate ORIGINAL_DIR PROTECTED_DIR --out report
  vpmetrics evaluate original.npz protected.npz --utt2spk utt2spk
  vpmetrics evaluate embeddings.npz       (arrays original, protected, speakers)
  vpmetrics evaluate --protected p.npz --utt2spk utt2spk    (without originals)
"""
_EVALUATE_MORE = """\
Exactly the trials of a list:
  vpmetrics evaluate --original enrolls.scp trials.scp \\
                     --protected enrolls_anon.scp trials_anon.scp \\
                     --utt2spk utt2spk --enrolls enrolls --trials trials

Recordings: wav, flac, ogg, mp3; a wav.scp; or a CSV or TSV with the columns
path,speaker[,utterance,session,group]. Embeddings, told by the suffix: .npz
.npy .pt .safetensors .parquet .csv .tsv .ark .scp .h5, with .gz behind it or
not; or a folder with one .npy or .pt per utterance. Rows are paired by the
names of utterances where files have them.
"""
_COMPARE = """\
Compare several anonymisers of the same speech, side by side.

  vpmetrics compare --original ORIGINAL_DIR A=DIR_A B=DIR_B --out report
  vpmetrics compare --original o.npz A=a.npz B=b.npz --utt2spk utt2spk
  vpmetrics compare A=a.npz B=b.npz  (each: original, protected, speakers)
  vpmetrics compare --original v.npz:emb_O --speakers v.npz:speaker \\
                    B2=v.npz:emb_B2 B2u=v.npz:emb_B2u
"""
_SCORES = """\
Evaluate scores of trials. Lines `enrol trial score`, with the label as a fourth
column or in a key of lines `enrol trial target|nontarget` in any order; CSV,
TSV and Parquet with headings; or a matrix, .npy or .npz, with the speakers of
its rows and columns.

  vpmetrics scores scores --key trials
  vpmetrics scores A=scores_a B=scores_b --key trials      (several systems)
  vpmetrics scores --oo oo --op op --pp pp --key trials --utt2spk utt2spk
  vpmetrics scores --pp m.npy --row-speakers rows --column-speakers columns
"""
_CHALLENGE = """\
Evaluate results of the VoicePrivacy challenges of 2020 to 2026, as the recipes
leave them in a folder: embeddings or scores, lists of trials, utility.

  vpmetrics challenge exp/asv_anon_mcadams --out report
  vpmetrics challenge mcadams=exp/asv_anon_mcadams nac=exp/asv_anon_nac
"""
_EMBED = """\
Embed the recordings of a folder, a wav.scp or a manifest (a CSV or TSV with
the columns path,speaker[,utterance,session,group]).

  vpmetrics embed DIR --out embeddings.npz
  vpmetrics embed DIR --encoder speechbrain:speechbrain/spkrec-ecapa-voxceleb \\
                  --out embeddings.npz
"""
_DEMO = """\
Train a small anonymiser of embeddings on the bundled synthetic voices with the
library's loss, watched by its metrics on speakers held out of training, and
compare it with baselines on these speakers. Nothing is downloaded.

  vpmetrics demo
  tensorboard --logdir vpmetrics-demo-tensorboard
"""
_EXIT = "Exit status: 0 when done, 2 when options or files cannot be used."


class _Command(NamedTuple):
    """A command: the class of its options, its help, and the function that adds its options."""

    options_class: type
    usage: str
    summary: str
    description: str
    add_options: Callable[[ArgumentParser], None]
    epilog: str = _EXIT


def make_parser() -> ArgumentParser:
    """Return the parser of all commands; ``command`` of what it parses is that given, if any."""
    question = "How well does a voice anonymiser hide who is speaking?"
    top = ArgumentParser("vpmetrics", description=question, epilog=_EXIT)
    top.add_argument("--version", action="version", version=f"vpmetrics {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in _list_commands().items():
        parser = commands.add_parser(
            name,
            help=command.summary,
            usage=f"vpmetrics {name} {command.usage} [options]".replace("  ", " "),
            description=command.description,
            epilog=command.epilog,
            formatter_class=lambda prog: RawDescriptionHelpFormatter(prog, max_help_position=26),
            allow_abbrev=False,  # abbreviations would make every new option a breaking change
        )
        parser.set_defaults(
            options_class=command.options_class, parser=parser, parsers=commands.choices
        )
        command.add_options(parser)
    return top


def _list_commands() -> dict[str, _Command]:
    """Return all commands by name."""
    return {
        "evaluate": _Command(
            EvaluateOptions,
            "ORIGINAL PROTECTED",
            "one system, from recordings or embeddings",
            _EVALUATE,
            _add_evaluate,
            f"{_EVALUATE_MORE}\n{_EXIT}",
        ),
        "compare": _Command(
            CompareOptions,
            "--original ORIGINAL NAME=PROTECTED ...",
            "several systems side by side",
            _COMPARE,
            _add_compare,
        ),
        "scores": _Command(
            ScoresOptions, "FILE ... --key KEY", "scores of trials", _SCORES, _add_scores
        ),
        "challenge": _Command(
            ChallengeOptions,
            "FOLDER ...",
            "results of a VoicePrivacy challenge",
            _CHALLENGE,
            _add_challenge,
        ),
        "embed": _Command(
            EmbedOptions,
            "DIR --out FILE.npz",
            "recordings to a file of embeddings",
            _EMBED,
            _add_embed,
        ),
        "demo": _Command(
            DemoOptions,
            "",
            "train a small anonymiser on the bundled voices",
            _DEMO,
            _add_demo,
        ),
    }


def reject_unknown_arguments(
    parsed: Namespace, unknown: Sequence[str], top: ArgumentParser
) -> NoReturn:
    """End with status 2, and name the closest option, or the commands that have this one."""
    option = unknown[0].partition("=")[0]
    message = f"unknown argument {unknown[0]}"
    if parsed.command is None:
        top.error(message)
    command: ArgumentParser = parsed.parser
    own_options = command._option_string_actions
    elsewhere: list[str] = []
    for name, parser in parsed.parsers.items():
        if option in parser._option_string_actions:
            elsewhere.append(name)
    closest = difflib.get_close_matches(option, own_options, n=1)
    if elsewhere:
        message += f": an option of vpmetrics {', '.join(elsewhere)}"
    elif closest:
        message += f"; closest: {closest[0]}"
    command.error(message)


def _add_evaluate(command: ArgumentParser) -> None:
    text = "the original and the protected speech; or one file with arrays of both"
    command.add_argument("inputs", nargs="*", type=_parse_nonempty, metavar="FILE", help=text)
    most_used = command.add_argument_group("most used")
    _add_first_options(most_used)
    group = command.add_argument_group(
        "sides", "each a FILE, a FILE:ARRAY, or the name of an array in FILE above"
    )
    text = "original speech; several files make one side where they name their utterances"
    group.add_argument(
        "--original", nargs="+", type=_parse_nonempty, default=[], metavar="SOURCE", help=text
    )
    text = "protected speech; alone, without originals, it gives PP"
    group.add_argument(
        "--protected", nargs="+", type=_parse_nonempty, default=[], metavar="SOURCE", help=text
    )
    _add_speech_options(command)


def _add_compare(command: ArgumentParser) -> None:
    text = "protected speech of a system, or a file of all arrays; NAME= may be left out"
    command.add_argument("systems", nargs="+", type=_parse_nonempty, metavar="NAME=FILE", help=text)
    most_used = command.add_argument_group("most used")
    text = "the original speech that all systems share: a folder, FILE or FILE:ARRAY"
    most_used.add_argument(
        "--original", nargs=1, type=_parse_nonempty, default=[], metavar="SOURCE", help=text
    )
    _add_first_options(most_used)
    group = _add_speech_options(command)
    _add_columns(group)
    command.set_defaults(title="Comparison of systems")


def _add_first_options(group: _ArgumentGroup) -> None:
    _add_out(group)
    text = "who speaks: lines `utterance speaker`, or a speaker for every row"
    group.add_argument("--utt2spk", "--speakers", dest="speakers", metavar="SOURCE", help=text)
    text = (
        "of recordings: resemblyzer (the offline default), speechbrain:SOURCE, transformers:MODEL,"
        " a TorchScript or ONNX file, or f0; several make one attacker who uses all of them. Models"
        " can run code of their authors: load those you trust; other files never run anything"
    )
    group.add_argument("--encoder", action="append", default=[], metavar="NAME", help=text)
    _add_utility(group)
    text = "compare only, without attacks: quicker, and the least that is disclosed"
    group.add_argument("--no-attacks", action="store_true", help=text)


def _add_speech_options(command: ArgumentParser) -> _ArgumentGroup:
    group = command.add_argument_group("names and labels")
    text = (
        "speakers from names of utterances: the first group of a pattern, or all of it, as"
        " '^[^-_]+'"
    )
    group.add_argument("--speaker-pattern", type=_parse_pattern, metavar="REGEX", help=text)
    group.add_argument(
        "--strip-suffix", metavar="TEXT", help="end of names of utterances to leave out, as _anon"
    )
    text = "leave out utterances that are not on both sides, and listed trials without embeddings"
    group.add_argument("--partial", action="store_true", help=text)
    text = "draws of the anonymiser's secret, for within and across"
    group.add_argument("--sessions", metavar="SOURCE", help=text)
    text = "lines `utterance group` or `speaker group`: results for each"
    group.add_argument("--groups", metavar="FILE", help=text)
    group.add_argument(
        "--weights", metavar="FILE", help="lines `group weight`: averages over the groups"
    )
    text = (
        "lines `utterance-or-speaker value`, or a table of attributes such as sex: what speech"
        " discloses of them"
    )
    group.add_argument("--attributes", metavar="FILE", help=text)
    text = "of files of embeddings whose suffix does not tell it, as npz"
    group.add_argument("--format", metavar="SUFFIX", help=text)
    group = command.add_argument_group("lists")
    group.add_argument(
        "--enrolls",
        metavar="FILE",
        help="utterances that speakers are enrolled with, as their mean",
    )
    text = "exactly these trials: lines `enrol trial target|nontarget`"
    group.add_argument("--trials", nargs="+", default=[], metavar="FILE", help=text)
    _add_key_columns(group, "of --trials")
    group = command.add_argument_group("measures")
    text = "also re-identification and singling out among as many people, as 20,1000"
    group.add_argument(
        "--population", type=_parse_population_sizes, default=(), metavar="N,...", help=text
    )
    text = "embeddings of enrolled speakers without tests, who make the gallery larger"
    group.add_argument("--distractors", metavar="FILE", help=text)
    _add_scoring(group)
    _add_intervals(group)
    group = command.add_argument_group("recordings")
    text = "use the fundamental frequency in addition to the encoders"
    group.add_argument("--feature", action="append", choices=("f0",), default=[], help=text)
    _add_device(group)
    group.add_argument("--no-audio", action="store_true", help="leave recordings out of the page")
    return _add_output_options(command)


def _add_scores(command: ArgumentParser) -> None:
    text = "scores of a system, NAME=FILE, or NAME=OP,PP; a score matrix"
    command.add_argument("files", nargs="*", type=_parse_nonempty, metavar="FILE", help=text)
    most_used = command.add_argument_group("most used")
    most_used.add_argument("--key", metavar="KEY", help="labels of the trials, for all files")
    _add_out(most_used)
    _add_utility(most_used)
    for name, text in (
        ("oo", "original"),
        ("op", "original against protected"),
        ("pp", "protected"),
    ):
        most_used.add_argument(f"--{name}", metavar="SCORES", help=f"trials of {text} speech")
    text = (
        "lines `utterance speaker`: gives similarity matrices, and intervals where target trials"
        " do not"
    )
    most_used.add_argument("--utt2spk", "--speakers", dest="speakers", metavar="FILE", help=text)
    group = command.add_argument_group(
        "score matrices", "where the file does not hold the speakers"
    )
    group.add_argument(
        "--row-speakers", metavar="FILE", help="the speaker of each row, a line each"
    )
    group.add_argument(
        "--column-speakers", metavar="FILE", help="the speaker of each column, a line each"
    )
    group = command.add_argument_group("columns and labels")
    text = (
        "of score files in another order: enrol, trial, score, label or _ to skip, as"
        " enrol,trial,label,score"
    )
    group.add_argument(
        "--score-columns", type=_parse_column_roles, default=(), metavar="NAME,...", help=text
    )
    _add_key_columns(group, "of keys")
    group.add_argument(
        "--strict", action="store_true", help="reject scores without label and labels without score"
    )
    group = command.add_argument_group("measures")
    text = (
        "SCORES [KEY] of another run of the system, to report C_ECE of SCORES or --op calibrated"
        " on it"
    )
    group.add_argument("--fit", nargs="+", default=[], metavar="FILE", help=text)
    text = "of matrices: of 2022 (geometric) or of 2020 (sigmoid)"
    group.add_argument("--similarity", choices=("geometric", "sigmoid"), help=text)
    _add_intervals(group)
    _add_columns(_add_output_options(command))


def _add_challenge(command: ArgumentParser) -> None:
    text = "a folder of results, or NAME=FOLDER; of one or several systems"
    command.add_argument("folders", nargs="+", type=_parse_nonempty, metavar="FOLDER", help=text)
    most_used = command.add_argument_group("most used")
    _add_out(most_used)
    _add_utility(most_used)
    most_used.add_argument(
        "--no-attacks", action="store_true", help="compare only, without attacks, which is quicker"
    )
    text = "lines `utterance speaker`, where names of utterances do not tell them"
    most_used.add_argument("--utt2spk", "--speakers", dest="speakers", metavar="FILE", help=text)
    group = command.add_argument_group("measures")
    _add_scoring(group)
    text = "lines `set weight`: other averages over sets than those of the challenge"
    group.add_argument("--weights", metavar="FILE", help=text)
    _add_intervals(group)
    _add_columns(_add_output_options(command))


def _add_embed(command: ArgumentParser) -> None:
    command.add_argument(
        "source", metavar="DIR", help="a folder of recordings, a wav.scp or a manifest"
    )
    command.add_argument(
        "--out", type=_parse_nonempty_path, required=True, metavar="FILE.npz", help="a new file"
    )
    text = (
        "resemblyzer (the offline default), speechbrain:SOURCE, transformers:MODEL, a TorchScript"
        " or ONNX file, or f0. Models can run code of their authors: load those you trust"
    )
    command.add_argument("--encoder", default="resemblyzer", metavar="NAME", help=text)
    text = "lines `utterance speaker`"
    command.add_argument("--utt2spk", "--speakers", dest="speakers", metavar="FILE", help=text)
    text = "speakers from names of utterances"
    command.add_argument("--speaker-pattern", type=_parse_pattern, metavar="REGEX", help=text)
    command.add_argument(
        "--partial", action="store_true", help="leave out recordings that cannot be used"
    )
    _add_device(command)


def _add_demo(command: ArgumentParser) -> None:
    default = Path("vpmetrics-demo")
    command.add_argument(
        "--out", type=_parse_nonempty_path, default=default, metavar="DIR", help=f"({default})"
    )
    command.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the split, the model and the batches (0)",
    )
    command.add_argument(
        "--epochs", type=int, default=130, metavar="N", help="four steps each (130)"
    )


def _add_out(group: _ArgumentGroup) -> None:
    text = (
        "write a page, results.json, tables and figures into a new folder, or in place of a"
        " former run"
    )
    group.add_argument("--out", type=_parse_nonempty_path, metavar="DIR", help=text)


def _add_utility(group: _ArgumentGroup) -> None:
    text = (
        "what else was measured, shown beside privacy, as WER=4.2; of several systems FILE.csv with"
        " a column system"
    )
    group.add_argument("--utility", action="append", default=[], metavar="NAME=VALUE", help=text)


def _add_scoring(group: _ArgumentGroup) -> None:
    # Without a default, so that an option that would do nothing is seen.
    group.add_argument(
        "--scoring", choices=("cosine", "dot", "euclidean", "plda"), help="of embeddings (cosine)"
    )
    text = (
        "labelled embeddings of other speakers to fit the PLDA on: arrays and speakers, or named as"
        " in --utt2spk"
    )
    group.add_argument("--plda-fit", metavar="FILE", help=text)


def _add_key_columns(group: _ArgumentGroup, what: str) -> None:
    text = f"{what} in another order, as label,enrol,trial"
    group.add_argument(
        "--key-columns", type=_parse_column_roles, default=(), metavar="NAME,...", help=text
    )


def _add_intervals(group: _ArgumentGroup) -> None:
    text = (
        "confidence level of the jackknife intervals (0.95); 0 for no intervals, which is quicker"
    )
    group.add_argument(
        "--intervals",
        type=_parse_confidence_or_zero,
        default=CONFIDENCE,
        metavar="SHARE",
        help=text,
    )


def _add_device(group: ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument("--device", metavar="NAME", help="where encoders run, as cuda (cpu)")


def _add_output_options(command: ArgumentParser) -> _ArgumentGroup:
    group = command.add_argument_group("output")
    group.add_argument("--title", metavar="TEXT", help="heading of the report")
    text = "write the results there; `-` prints nothing else"
    group.add_argument("--json", type=_parse_nonempty_path, metavar="FILE", help=text)
    group.add_argument("--all", action="store_true", help="print every number")
    group.add_argument(
        "--figures",
        nargs="+",
        choices=("png", "pdf", "svg"),
        default=["png"],
        help="kinds of files of figures (png)",
    )
    return group


def _add_columns(group: _ArgumentGroup) -> None:
    text = (
        "of the table of systems: keys as op_eer or eer, utilities, or default, paper-2022,"
        " paper-srd, challenge"
    )
    group.add_argument(
        "--columns", type=_parse_columns, default=("default",), metavar="A,...", help=text
    )


def _parse_nonempty(text: str) -> str:
    if not text:
        raise ArgumentTypeError("expected a name, but got an empty one")
    return text


def _parse_nonempty_path(text: str) -> Path:
    return Path(_parse_nonempty(text))


def _parse_columns(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _parse_pattern(text: str) -> str:
    try:
        return re.compile(text).pattern
    except re.error as error:
        raise ArgumentTypeError(
            f"expected a regular expression, but got {text!r} ({error})"
        ) from None


def _parse_confidence_or_zero(text: str) -> float | None:
    """Return a confidence level; None for 0, which leaves intervals out."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"expected a number from 0 to below 1, as 0.95, but got {text}")
    return value or None


def _parse_population_sizes(text: str) -> tuple[int, ...]:
    fields = text.split(",")
    sizes = tuple(int(field) for field in fields if field.isdecimal())
    if len(set(sizes)) < len(fields) or min(sizes) < 2:
        raise ArgumentTypeError(
            f"expected different numbers of at least 2, as 20,1000, but got {text}"
        )
    return sizes


def _parse_column_roles(text: str) -> tuple[str, ...]:
    """Return what each column holds, from a text such as ``_,enrol,trial,score``.

    ``_`` stands for a column that is not read. Roles may be missing: which of them a file needs is
    checked where it is read.
    """
    names = tuple(text.split(","))
    roles = [name for name in names if name != "_"]
    is_known = set(roles) <= {"enrol", "trial", "score", "label"}
    has_duplicates = len(set(roles)) < len(roles)
    if not is_known or has_duplicates:
        raise ArgumentTypeError(
            f"expected each of enrol, trial, score, label at most once, or _, but got {text}"
        )
    return names
