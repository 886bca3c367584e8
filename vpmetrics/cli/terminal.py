"""What a command prints: the summary, every table if asked for, notes, and what was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable
from rich.text import Text

from vpmetrics._util.inputs import InputError, read_files
from vpmetrics._util.scalar import printable
from vpmetrics.cli.options import (
    ChallengeOptions,
    OutputOptions,
    ScoresOptions,
    SpeechOptions,
    describe_settings,
)
from vpmetrics.readers import challenge, evaluation
from vpmetrics.report import comparison, summary
from vpmetrics.report.folder import (
    RESULTS,
    check_output_file,
    check_output_folder,
    replace_file,
    replace_folder,
)
from vpmetrics.report.outputs import (
    PAGE,
    Content,
    Sample,
    own_file_names,
    render_files,
    render_results,
)
from vpmetrics.report.privacy_report import EvaluatedSystem
from vpmetrics.report.results import Run
from vpmetrics.report.tables import Table, clean

_STYLES = {"best": "bold", "better": "green", "worse": "red"}  # by the tone of a cell


def check_outputs(options: OutputOptions, inputs: Sequence[str] = ()) -> None:
    """Raise for outputs that cannot be written, or that would overwrite each other or an input."""
    if options.out is not None:
        check_output_folder(options.out, own_file_names())
        _check_not_an_input(options.out, inputs)
    if options.json is None or options.is_json_printed:
        return
    check_output_file(options.json)
    _check_not_an_input(options.json, inputs)
    if options.out is not None and options.json.resolve().parent == options.out.resolve():
        raise InputError(
            "is in the folder of --out, which is replaced as a whole; choose another name",
            options.json,
        )


def check_utility(options: OutputOptions, names: Sequence[str]) -> None:
    """Raise for utilities that cannot be read or are of other systems.

    Raise for columns that do not exist, too.
    """
    utility = challenge.read_utility(options.utility, names)
    utility_names: set[str] = set()
    for of_system in utility.values():
        utility_names.update(of_system)
    # A folder of a challenge may hold utilities as well, which are written with capitals.
    comparison.check_columns(options.columns, utility_names | {"WER", "UAR"})


def publish_systems(
    systems: Sequence[EvaluatedSystem],
    options: SpeechOptions | ScoresOptions | ChallengeOptions,
    title: str,
    lead: str,
    console: Console,
    samples: Sequence[Sample] = (),
) -> None:
    """Add the values of ``--utility`` and publish the systems.

    Raise if no measure of any is defined.
    """
    output = options.output
    utility = challenge.read_utility(output.utility, [system.name for system in systems])
    with_utility: list[EvaluatedSystem] = []
    for system in systems:
        of_system = {**system.utility, **utility[system.name]}
        with_utility.append(replace(system, utility=of_system))
    evaluation.check_anything_defined(with_utility)
    settings: dict[str, object] = {}
    if any(report.identification for report in systems[0].report.conditions.values()):
        settings = {"scoring": "cosine", "similarity": "geometric"}
    settings |= describe_settings(options)
    run = Run(("vpmetrics", *options.arguments), settings, dict(read_files))
    publish(
        Content(clean(title), clean(lead), with_utility, run, output.columns, samples),
        console,
        output,
    )


def _check_not_an_input(path: Path, inputs: Sequence[str]) -> None:
    """Raise if an output is an input or holds one."""
    target = path.resolve()
    for text in inputs:
        source = Path(text).resolve()
        if target == source or (target.is_dir() and target in source.parents):
            raise InputError(f"holds the input {text} and would be lost; choose another name", path)


def publish(content: Content, console: Console, options: OutputOptions) -> None:
    """Write the files that were asked for, and print the summary."""
    # Files are written before anything is printed: the reader of the output may stop.
    if options.out is not None:
        files = render_files(content, options.figures)
        replace_folder(options.out, files, own_file_names())
    if options.is_json_printed:
        console.file.write(render_results(content).decode())
        return
    if options.json is not None:
        replace_file(options.json, render_results(content))
    _print_summary(content, options, console)
    _print_written(options, console)


def _print_summary(content: Content, options: OutputOptions, console: Console) -> None:
    if options.all:
        for path, description in content.run.inputs.items():
            _print_text(printable(f"{path}: {description}"), console, "dim")
    title, *lines = _summary_lines(content)
    _print_text(title, console, "bold")
    for line in [*lines, ""]:
        _print_text(line, console)
    if options.all:
        print_tables(content.tables, console)
        console.print(f"{summary.RULE} {summary.LIMITS}", style="dim", highlight=False)
    if content.intervals:
        _print_text(f"In brackets: {content.intervals}.", console, "dim")
    for note in content.notes:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


def _summary_lines(content: Content) -> list[str]:
    if len(content.systems) == 1:
        return summary.summary_lines(content.systems[0])
    verdict = comparison.verdict_of_systems(content.systems, content.pairs)
    lines = [*summary.verdict_lines(verdict), ""]
    lines += summary.check_lines(comparison.collect_checks(content.systems))
    lines += summary.comparison_lines(content.systems)
    return [*lines, "", *summary.explain_comparison(content.systems)]


def _print_written(options: OutputOptions, console: Console) -> None:
    if options.json is not None:
        _print_text(f"Wrote {printable(options.json)}", console)
    if options.out is not None:
        page = printable(options.out / PAGE)
        _print_text(
            f"Wrote {page}, with figures, tables, model card and {RESULTS} beside it", console
        )


def _print_text(text: str, console: Console, style: str = "") -> None:
    """Print a text as it is: brackets are no markup, and long lines are not broken."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_tables(tables: Sequence[Table], console: Console) -> None:
    """Print tables so that no digit is cut.

    Columns that do not fit the terminal follow in a second table.
    """
    for table in tables:
        # Headings stand word by word, so that a dozen columns fit into 80 characters.
        heads = [table.columns[0]]
        heads += [text.replace(" ", "\n") for text in table.columns[1:]]
        widths = [_column_width(head, table, column) for column, head in enumerate(heads)]
        gap = 1
        if sum(widths) + 2 * len(widths) <= console.width:
            gap = 2
        title = table.title
        for columns in _split_columns(widths, gap, console.width):
            console.print(_make_grid(table, title, heads, columns, gap))
            title = f"{table.title} (continued)"


def _make_grid(
    table: Table, title: str, heads: Sequence[str], columns: Sequence[int], gap: int
) -> RichTable:
    """Return the first column of a table and some others, with ``gap`` spaces between them."""
    grid = RichTable(
        title=Text(title, "bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,  # which puts one space between columns
        padding=(0, gap - 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    grid.add_column(Text(heads[0]), justify="left", overflow="fold")
    for column in columns:
        grid.add_column(Text(heads[column]), justify="right", no_wrap=True, overflow="fold")
    for row in table.rows:
        cells = [row[column] for column in (0, *columns)]
        grid.add_row(*(Text(str(cell), _STYLES.get(cell.tone, "")) for cell in cells))
    return grid


def _column_width(head: str, table: Table, column: int) -> int:
    texts = [*head.split("\n"), *(str(row[column]) for row in table.rows)]
    return max(map(cell_len, texts))


def _split_columns(widths: Sequence[int], gap: int, total_width: int) -> list[list[int]]:
    """Return the columns of each part of a table, so that each fits the terminal.

    A part begins with the first column.
    """
    room = total_width - min(widths[0], total_width // 2)
    columns_by_grid: list[list[int]] = []
    used = room
    for column in range(1, len(widths)):
        width = widths[column] + gap
        if not columns_by_grid or used + width > room:
            columns_by_grid.append([])
            used = 0
        columns_by_grid[-1].append(column)
        used += width
    return columns_by_grid
