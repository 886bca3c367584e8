"""Options of the commands, and their help."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter, _ArgumentGroup
from pathlib import Path
from typing import Any

from vpmetrics import __version__
from vpmetrics.app import usage


def parser() -> ArgumentParser:
    """The parser of all commands; `command` of what it parses is that given, if any."""
    top = ArgumentParser(
        "vpmetrics", description="How well does a voice anonymiser hide who is speaking?", epilog=usage.EXIT
    )
    top.add_argument("--version", action="version", version=f"vpmetrics {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_evaluate(_command(commands, "evaluate", "one system, from embeddings or score files", usage.EVALUATE))
    _add_compare(_command(commands, "compare", "several systems side by side", usage.COMPARE))
    _add_demo(_command(commands, "demo", "train a small anonymiser on the bundled voices", usage.DEMO))
    return top


def _command(commands: Any, name: str, summary: str, description: str) -> ArgumentParser:
    # Abbreviations would make every new option a breaking change.
    added: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=usage.EXIT,
        formatter_class=lambda prog: RawDescriptionHelpFormatter(prog, max_help_position=26),
        allow_abbrev=False,
    )
    return added


def _add_evaluate(command: ArgumentParser) -> None:
    command.add_argument(
        "inputs",
        nargs="*",
        metavar="FILE",
        help="a file of embeddings (arrays original, protected, speakers), SCORES [KEY], or a folder of results of a "
        "VoicePrivacy challenge",
    )
    group = command.add_argument_group("embeddings", "each a FILE, a FILE:ARRAY, or the name of an array in FILE above")
    says = "of the original speech; several files make one side where they name their utterances"
    group.add_argument("--original", nargs="+", metavar="SOURCE", help=says)
    group.add_argument("--protected", nargs="+", metavar="SOURCE", help="of the protected speech")
    _add_speakers(group)
    group.add_argument("--utterances", metavar="SOURCE", help="numbers or names of recordings; copies count once")
    group.add_argument("--partial", action="store_true", help="leave out utterances that are not on both sides")
    _add_scoring(group)
    group = command.add_argument_group("protocol", "exactly the trials of a list, of embeddings whose rows have names")
    group.add_argument("--trials", nargs="+", metavar="FILE", help="lines `enrol trial target|nontarget`")
    group.add_argument("--enrolls", metavar="FILE", help="utterances that speakers are enrolled with, as their mean")
    group.add_argument("--groups", metavar="FILE", help="lines `utterance group` or `speaker group`: results for each")
    group.add_argument("--weights", metavar="FILE", help="lines `group weight`: averages over the groups")
    group = command.add_argument_group("score files")
    for name, says in (
        ("oo", "original against original"),
        ("op", "original against protected"),
        ("pp", "protected against protected"),
    ):
        group.add_argument(f"--{name}", metavar="SCORES", help=f"trials of {says} speech")
    _add_key(group)
    group.add_argument(
        "--fit",
        nargs="+",
        metavar="FILE",
        help="SCORES [KEY] of another run of the system, to report C_ECE of SCORES or --op calibrated on it",
    )
    _add_output(command)


def _add_compare(command: ArgumentParser) -> None:
    command.add_argument(
        "systems",
        nargs="+",
        metavar="NAME=FILE",
        help="protected embeddings, a file of all arrays, or scores: OP, or OP,PP; NAME= may be left out",
    )
    group = command.add_argument_group("embeddings")
    group.add_argument("--original", metavar="SOURCE", help="shared original embeddings, FILE or FILE:ARRAY")
    _add_speakers(group)
    _add_scoring(group)
    group = command.add_argument_group("score files")
    group.add_argument("--oo", metavar="SCORES", help="trials of original against original speech")
    _add_key(group)
    _add_output(command, title="Comparison of systems")


def _add_demo(command: ArgumentParser) -> None:
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the split, the model and the batches (0)")
    command.add_argument("--epochs", type=int, default=72, metavar="N", help="four steps each (72)")
    command.add_argument("--out", type=Path, default=Path("vpmetrics-demo"), metavar="DIR", help="(vpmetrics-demo)")


def _add_speakers(group: _ArgumentGroup) -> None:
    group.add_argument(
        "--speakers",
        "--utt2spk",
        metavar="SOURCE",
        help="of every row; text files have a speaker a line, or lines `utterance speaker`. Score files get "
        "similarity matrices by it, and intervals where target trials do not say who speaks",
    )


def _add_scoring(group: _ArgumentGroup) -> None:
    # Without defaults, so that one that would do nothing is seen.
    group.add_argument("--scoring", choices=("cosine", "dot", "euclidean", "plda"), help="of two embeddings (cosine)")
    says = "labelled embeddings of other speakers to fit the PLDA on: arrays and speakers, or named as in --utt2spk"
    group.add_argument("--plda-fit", metavar="FILE", help=says)
    group.add_argument("--similarity", choices=("geometric", "sigmoid"), help="of 2022 (geometric) or of 2020")
    says = "also how often somebody is found, and singled out, among so many: numbers, as 20,1000"
    group.add_argument("--people", type=_people, metavar="N,...", help=says)
    group.add_argument("--no-attacks", action="store_true", help="compare embeddings only, which is quicker")


def _confidence(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ArgumentTypeError(f"expected a number from 0 to below 1, as 0.95, but got {text}")
    return value


def _people(text: str) -> tuple[int, ...]:
    sizes = tuple(int(part) for part in text.split(",") if part.isdecimal())
    if len(set(sizes)) < len(text.split(",")) or min(sizes) < 2:
        raise ArgumentTypeError(f"expected different numbers of at least 2, as 20,1000, but got {text}")
    return sizes


def _add_key(group: _ArgumentGroup) -> None:
    group.add_argument("--key", metavar="KEY", help="labels of the trials, for all score files")
    group.add_argument("--strict", action="store_true", help="refuse scores without label and labels without score")


def _add_output(command: ArgumentParser, title: str | None = None) -> None:
    group = command.add_argument_group("output")
    group.add_argument("--title", default=title, metavar="TEXT", help="heading of the report")
    says = "how often an interval is to hold the truth, from leaving speakers out (0.95); 0 for none, which is quicker"
    group.add_argument("--intervals", type=_confidence, metavar="SHARE", help=says)
    group.add_argument(
        "--out", type=Path, metavar="DIR", help="write report.html, results.json, tables and figures there"
    )
    group.add_argument("--json", type=Path, metavar="FILE", help="write the results there; `-` prints nothing else")
    kinds = ("png", "pdf", "svg")
    group.add_argument("--figures", nargs="+", choices=kinds, default=["png"], help="kinds of files of figures (png)")
