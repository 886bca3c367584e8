"""Options of the commands, and their help."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter, _ArgumentGroup
from pathlib import Path

from vpmetrics import __version__

CONFIDENCE = 0.95  # of intervals
_OF_ONE_SYSTEM = "protected", "utterances", "sessions", "references", "enrolls", "groups", "weights", "fit"

_EVALUATE = """\
Evaluate one anonymiser: a summary in the terminal and, if asked for, JSON,
figures and one HTML page.

From two folders of recordings, or two files of embeddings:

  vpmetrics evaluate ORIGINAL_DIR PROTECTED_DIR --out report
  vpmetrics evaluate original.npz protected.npz --utt2spk utt2spk

From one file of embeddings (arrays original, protected, speakers), or with
files, arrays and labels named one by one:

  vpmetrics evaluate embeddings.npz --out report
  vpmetrics evaluate v.npz --original emb_O --protected emb_B2 --speakers spk
  vpmetrics evaluate --original o.ark --protected p.ark --utt2spk data/utt2spk

Formats, told by the suffix: .npz .npy .pt .safetensors .parquet .csv .tsv
.ark .scp .h5, with .gz behind it or not; or a folder with one .npy or .pt per
utterance. Rows are paired by utterance where files name these.

By a protocol, exactly the trials of a list, with results for each group; or
from a folder of results of a VoicePrivacy challenge:

  vpmetrics evaluate --original enrolls.scp trials.scp \\
                     --protected enrolls_anon.scp trials_anon.scp \\
                     --utt2spk utt2spk --enrolls enrolls --trials trials \\
                     --groups spk2gender --out report
  vpmetrics evaluate exp/asv_anon_mcadams --out report

From Kaldi-style score files, lines `enrol trial score`, and a key, lines
`enrol trial target|nontarget` in any order (or the label as a fourth column of
the scores):

  vpmetrics evaluate scores key --out report
  vpmetrics evaluate --oo oo --op op --pp pp --key trials --utt2spk utt2spk
  vpmetrics evaluate scores key --fit scores_of_another_run
"""
_COMPARE = """\
Compare several anonymisers: the columns of the papers' tables, and all systems
in one figure each.

  vpmetrics compare --original ORIGINAL_DIR A=DIR B=DIR --out report
  vpmetrics compare B2=b2.npz B2u=b2u.npz --out report
  vpmetrics compare --original o.npy --speakers spk.npy B1=b1.npy B2=b2.npy
  vpmetrics compare --original v.npz:emb_O --speakers v.npz:speaker \\
                    B2=v.npz:emb_B2 B2u=v.npz:emb_B2u
  vpmetrics compare mcadams=exp/asv_anon_mcadams nac=exp/asv_anon_nac
  vpmetrics compare --key trials B1=scores_b1 B2=scores_b2
  vpmetrics compare --key trials --oo oo --utt2spk utt2spk \\
                    B1=b1_op,b1_pp B2=b2_op,b2_pp
"""
_EMBED = """\
Embed the recordings of a folder, a wav.scp or a manifest (a CSV or TSV with
the columns path,speaker[,utterance,session,group]).

  vpmetrics embed DIR --encoder speechbrain:speechbrain/spkrec-ecapa-voxceleb \\
                  --out embeddings.npz
"""
_DEMO = """\
Train a small anonymiser of embeddings on the bundled synthetic voices with the
library's loss, watched by its metrics on speakers held out of training, and
compare it with baselines on these speakers. Nothing is downloaded.

  vpmetrics demo --out vpmetrics-demo
  tensorboard --logdir vpmetrics-demo-tensorboard
"""
_EXIT = "Exit status: 0 when done, 2 when options or files cannot be used."


def make_parser() -> ArgumentParser:
    """Return the parser of all commands; ``command`` of what it parses is that given, if any."""
    question = "How well does a voice anonymiser hide who is speaking?"
    top = ArgumentParser("vpmetrics", description=question, epilog=_EXIT)
    top.add_argument("--version", action="version", version=f"vpmetrics {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary, description, add_options in (
        ("evaluate", "one system, from recordings, embeddings or scores", _EVALUATE, _add_evaluate),
        ("compare", "several systems side by side", _COMPARE, _add_compare),
        ("embed", "recordings to a file of embeddings", _EMBED, _add_embed),
        ("demo", "train a small anonymiser on the bundled voices", _DEMO, _add_demo),
    ):
        command = commands.add_parser(
            name,
            help=summary,
            description=description,
            epilog=_EXIT,
            formatter_class=lambda prog: RawDescriptionHelpFormatter(prog, max_help_position=26),
            allow_abbrev=False,  # abbreviations would make every new option a breaking change
        )
        add_options(command)
    return top


def _add_evaluate(command: ArgumentParser) -> None:
    text = (
        "a file of embeddings, original and protected files or folders, SCORES [KEY], or a challenge's results folder"
    )
    command.add_argument("inputs", nargs="*", type=_parse_nonempty, metavar="FILE", help=text)
    group = command.add_argument_group("embeddings", "each a FILE, a FILE:ARRAY, or the name of an array in FILE above")
    text = "of the original speech; several files make one side where they name their utterances"
    group.add_argument("--original", nargs="+", type=_parse_nonempty, metavar="SOURCE", help=text)
    group.add_argument("--protected", nargs="+", type=_parse_nonempty, metavar="SOURCE", help="of the protected speech")
    _add_pairing_options(group)
    group.add_argument("--utterances", metavar="SOURCE", help="numbers or names of recordings; copies count once")
    group.add_argument("--sessions", metavar="SOURCE", help="draws of the anonymiser's secret, for within and across")
    group.add_argument("--references", metavar="FILE", help="utterances to compare the others with, each by itself")
    _add_metric_and_recording_options(command, group)
    group = command.add_argument_group("protocol", "exactly the trials of a list, of embeddings whose rows have names")
    group.add_argument("--trials", nargs="+", metavar="FILE", help="lines `enrol trial target|nontarget`")
    group.add_argument("--enrolls", metavar="FILE", help="utterances that speakers are enrolled with, as their mean")
    group.add_argument("--groups", metavar="FILE", help="lines `utterance group` or `speaker group`: results for each")
    group.add_argument("--weights", metavar="FILE", help="lines `group weight`: averages over the groups")
    group = command.add_argument_group("score files")
    for name, text in (("oo", "original"), ("op", "original against protected"), ("pp", "protected")):
        group.add_argument(f"--{name}", metavar="SCORES", help=f"trials of {text} speech")
    _add_key_options(group)
    text = "SCORES [KEY] of another run of the system, to report C_ECE of SCORES or --op calibrated on it"
    group.add_argument("--fit", nargs="+", metavar="FILE", help=text)
    _add_output_options(command)


def _add_compare(command: ArgumentParser) -> None:
    text = (
        "protected embeddings, a file of all arrays, a results folder, or scores: OP, or OP,PP; NAME= may be left out"
    )
    command.add_argument("systems", nargs="+", metavar="NAME=FILE", help=text)
    group = command.add_argument_group("embeddings")
    text = "shared original embeddings, FILE or FILE:ARRAY"
    group.add_argument("--original", nargs=1, metavar="SOURCE", help=text)
    _add_pairing_options(group)
    _add_metric_and_recording_options(command, group)
    group = command.add_argument_group("score files")
    group.add_argument("--oo", metavar="SCORES", help="trials of original against original speech")
    _add_key_options(group)
    _add_output_options(command)
    command.set_defaults(**dict.fromkeys(_OF_ONE_SYSTEM), title="Comparison of systems")


def _add_embed(command: ArgumentParser) -> None:
    command.add_argument("source", metavar="DIR", help="a folder of recordings, a wav.scp or a manifest")
    command.add_argument("--encoder", default="resemblyzer", metavar="NAME", help="as of evaluate (resemblyzer); or f0")
    command.add_argument("--out", type=_parse_nonempty_path, required=True, metavar="FILE.npz", help="a new file")
    command.add_argument("--utt2spk", metavar="FILE", help="lines `utterance speaker`")
    text = "speakers from names of utterances"
    command.add_argument("--speaker-pattern", type=_parse_pattern, metavar="REGEX", help=text)
    command.add_argument("--partial", action="store_true", help="leave out recordings that cannot be used")
    _add_device_and_workers(command)


def _add_demo(command: ArgumentParser) -> None:
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of the split, the model and the batches (0)")
    command.add_argument("--epochs", type=int, default=72, metavar="N", help="four steps each (72)")
    default = Path("vpmetrics-demo")
    command.add_argument("--out", type=_parse_nonempty_path, default=default, metavar="DIR", help=f"({default})")


def _add_pairing_options(group: _ArgumentGroup) -> None:
    text = (
        "of every row; text files have a speaker a line, or lines `utterance speaker`. Score files get similarity "
        "matrices by it, and intervals where target trials do not tell the speakers"
    )
    group.add_argument("--speakers", "--utt2spk", metavar="SOURCE", help=text)
    text = "speakers from names of utterances: the first group of a pattern, or all of it, as '^[^-_]+'"
    group.add_argument("--speaker-pattern", type=_parse_pattern, metavar="REGEX", help=text)
    group.add_argument("--strip-suffix", metavar="TEXT", help="end of names of utterances to leave out, as _anon")
    text = "leave out utterances that are not on both sides, and listed trials without embeddings"
    group.add_argument("--partial", action="store_true", help=text)
    text = "of files of embeddings whose suffix does not tell it, as npz"
    group.add_argument("--format", metavar="SUFFIX", help=text)


def _add_metric_and_recording_options(command: ArgumentParser, group: _ArgumentGroup) -> None:
    text = "lines `utterance-or-speaker value`, or a table of attributes such as sex: what speech discloses of them"
    group.add_argument("--attributes", metavar="FILE", help=text)
    # Without defaults, so that an option that would do nothing is seen.
    group.add_argument("--scoring", choices=("cosine", "dot", "euclidean", "plda"), help="of embeddings (cosine)")
    text = "labelled embeddings of other speakers to fit the PLDA on: arrays and speakers, or named as in --utt2spk"
    group.add_argument("--plda-fit", metavar="FILE", help=text)
    group.add_argument("--similarity", choices=("geometric", "sigmoid"), help="of 2022 (geometric) or of 2020")
    group.add_argument("--rank-model", choices=("empirical", "beta_binomial"), help="of rank disclosure (empirical)")
    text = "also re-identification and singling out in populations of these sizes, as 20,1000"
    group.add_argument("--population", type=_parse_population_sizes, metavar="N,...", help=text)
    group.add_argument("--no-attacks", action="store_true", help="compare embeddings only, which is quicker")
    group = command.add_argument_group("recordings", "folders, wav.scp or manifests in place of files of embeddings")
    text = (
        "resemblyzer (the offline default), speechbrain:SOURCE, transformers:MODEL, or a TorchScript or ONNX file, "
        "all of which run their author's code; may be given several times"
    )
    group.add_argument("--encoder", action="append", metavar="NAME", help=text)
    group.add_argument("--feature", choices=("f0",), help="compare histograms of the fundamental frequency as well")
    _add_device_and_workers(group)
    group.add_argument("--no-audio", action="store_true", help="leave recordings out of the page")


def _add_device_and_workers(group: ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument("--device", metavar="NAME", help="where encoders run, as cuda (cpu)")
    group.add_argument("--workers", type=int, default=2, metavar="N", help="threads that read recordings (2)")


def _add_key_options(group: _ArgumentGroup) -> None:
    group.add_argument("--key", metavar="KEY", help="labels of the trials, for all score files")
    text = "of score files in another order: enrol, trial, score, label or _ to skip, as enrol,trial,label,score"
    group.add_argument("--score-columns", type=_parse_column_roles, metavar="NAME,...", help=text)
    text = "of keys, as label,enrol,trial"
    group.add_argument("--key-columns", type=_parse_column_roles, metavar="NAME,...", help=text)
    group.add_argument("--strict", action="store_true", help="reject scores without label and labels without score")


def _add_output_options(command: ArgumentParser) -> None:
    command.set_defaults(samples=())  # picked where recordings are evaluated
    group = command.add_argument_group("output")
    group.add_argument("--title", metavar="TEXT", help="heading of the report")
    text = "confidence level of the jackknife intervals (0.95); 0 for no intervals, which is quicker"
    group.add_argument("--intervals", type=_parse_confidence_or_zero, default=CONFIDENCE, metavar="SHARE", help=text)
    text = "other measurements, as WER=4.2; of several systems FILE.csv with a column system"
    group.add_argument("--utility", action="append", metavar="NAME=VALUE", help=text)
    text = "write report.html, results.json, tables and figures into a new folder, or over those of a former run"
    group.add_argument("--out", type=_parse_nonempty_path, metavar="DIR", help=text)
    text = "write the results there; `-` prints nothing else"
    group.add_argument("--json", type=_parse_nonempty_path, metavar="FILE", help=text)
    group.add_argument("--all", action="store_true", help="print every number")
    text = "of tables of systems: keys as op_eer or eer, utilities, or default, paper-2022, paper-srd, challenge"
    group.add_argument("--columns", type=lambda text: text.split(","), default=["default"], metavar="A,...", help=text)
    group.add_argument("--latex-intervals", action="store_true", help="with confidence intervals in tables.tex")
    kinds = ("png", "pdf", "svg")
    group.add_argument("--figures", nargs="+", choices=kinds, default=["png"], help="kinds of files of figures (png)")


def _parse_nonempty(text: str) -> str:
    if not text:
        raise ArgumentTypeError("expected a name, but got an empty one")
    return text


def _parse_nonempty_path(text: str) -> Path:
    return Path(_parse_nonempty(text))


def _parse_pattern(text: str) -> str:
    try:
        return re.compile(text).pattern
    except re.error as error:
        raise ArgumentTypeError(f"expected a regular expression, but got {text!r} ({error})") from None


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
    sizes = tuple(int(part) for part in text.split(",") if part.isdecimal())
    if len(set(sizes)) < len(text.split(",")) or min(sizes) < 2:
        raise ArgumentTypeError(f"expected different numbers of at least 2, as 20,1000, but got {text}")
    return sizes


def _parse_column_roles(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    roles = [name for name in names if name != "_"]
    if not set(roles) <= {"enrol", "trial", "score", "label"} or len(set(roles)) < len(roles):
        raise ArgumentTypeError(f"expected each of enrol, trial, score, label once, or _, but got {text}")
    return names
