"""``vpmetrics evaluate``: one system, from recordings or embeddings."""

from __future__ import annotations

from rich.console import Console

from vpmetrics._util.inputs import InputError
from vpmetrics._util.scalar import printable
from vpmetrics.cli.options import EvaluateOptions
from vpmetrics.cli.speech import SystemInputs, evaluate_speech, name_of_sources
from vpmetrics.cli.terminal import publish_systems


def evaluate(options: EvaluateOptions, console: Console) -> None:
    """Evaluate one system."""
    inputs = _find_inputs(options)
    evaluated = evaluate_speech([inputs], options)
    sources = dict.fromkeys(inputs.sources)
    lead = f"Voice privacy of {printable(', '.join(sources))}"
    publish_systems(evaluated.systems, options, inputs.name, lead, console, evaluated.samples)


def _find_inputs(options: EvaluateOptions) -> SystemInputs:
    """Return the sources of both sides: named by position, by option, or all in one file."""
    has_sides = bool(options.original or options.protected)
    if not options.inputs and not has_sides:
        raise InputError(
            "Expected ORIGINAL and PROTECTED, but got neither; see `vpmetrics evaluate --help`."
        )
    if not has_sides and len(options.inputs) == 2:
        original, protected = options.inputs
        return SystemInputs(_choose_name(options, (protected,)), None, (original,), (protected,))
    if len(options.inputs) > 1:
        got = f"{len(options.inputs)} files"
        if has_sides:
            got += " beside --original or --protected"
        raise InputError(
            f"Expected ORIGINAL and PROTECTED, or one file of all arrays, but got {got}."
        )
    container = None
    if options.inputs:
        container = options.inputs[0]
    name = _choose_name(options, (*options.inputs, *options.protected, *options.original))
    return SystemInputs(name, container, options.original, options.protected)


def _choose_name(options: EvaluateOptions, sources: tuple[str, ...]) -> str:
    return printable(options.output.title or name_of_sources(sources))
