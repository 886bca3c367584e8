"""One self-contained HTML page: tables, figures and what they mean, for the screen, the printer and a screen reader."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from string import Template

from vpmetrics import __version__
from vpmetrics._scalars import scalar
from vpmetrics.app.figures import Picture
from vpmetrics.app.tables import Table

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="vpmetrics $version">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { margin: 0 auto; padding: 1.5rem 1.25rem 3rem; max-width: 62rem; background: #fff; color: #1a1a1a;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; padding-top: .75rem; border-top: 1px solid #ccc; }
.lead { margin: 0; color: #444; }
.tables { columns: 2 22rem; column-gap: 2rem; }
.scroll { overflow-x: auto; max-width: 100%; break-inside: avoid; }
table { border-collapse: collapse; margin: .5rem 0 1.25rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .35rem; }
th, td { padding: .28rem .75rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; padding-left: .25rem; }
thead th { border-bottom: 2px solid #1a1a1a; vertical-align: bottom; white-space: normal; }
tbody th { font-weight: 400; }
tbody tr { border-bottom: 1px solid #ddd; }
figure { margin: 1.25rem 0 1.75rem; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { margin-top: .5rem; color: #333; max-width: 46rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; }
dt { font-weight: 600; } dd { margin: 0; }
ul { padding-left: 1.25rem; } li { overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; padding-top: .75rem; border-top: 1px solid #ccc; color: #444; font-size: .875rem; }
@media (max-width: 34rem) { dl { display: block; } dd { margin-bottom: .5rem; } }
@media print {
  @page { margin: 1.5cm; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  th, td { padding: .15rem .5rem; }
  figure, table, dt, dd { break-inside: avoid; }
  h2 { break-after: avoid; }
}
</style>
</head>
<body>
<header><h1>$title</h1><p class="lead">$lead</p></header>
<main>
<section aria-labelledby="results"><h2 id="results">Results</h2>$tables</section>
$notes
$figures
<section aria-labelledby="meaning"><h2 id="meaning">What the numbers mean</h2><dl>$terms</dl></section>
</main>
<footer><p>$footer</p></footer>
</body>
</html>
""")

_PAPERS = (
    "DeID, G_VD: Noé et al., Interspeech 2020, and Computer Speech and Language 72, 2022, which also defines the "
    "relatives to original speech and C_ECE. D_ECE, l_w, tag: Nautsch et al., “The Privacy ZEBRA”, Interspeech 2020. "
    "A dash stands for a value that is not defined or not known."
)


def render_page(
    title: str, lead: str, tables: Sequence[Table], pictures: Sequence[Picture], notes: Sequence[str], wide: bool
) -> str:
    """The page as text; ``wide`` puts tables below each other."""
    body = "".join(_table(table) for table in tables)
    shown = dict.fromkeys(key for table in tables for key in table.keys)
    terms = "".join(f"<dt>{escape(scalar(key).heading)}</dt><dd>{escape(scalar(key).tells)}.</dd>" for key in shown)
    return _PAGE.substitute(
        version=__version__,
        title=escape(title),
        lead=escape(lead),
        tables=body if wide else f'<div class="tables">{body}</div>',
        notes=_notes(notes),
        figures="".join(_section(picture, title, number) for number, picture in enumerate(pictures)),
        terms=terms,
        footer=escape(f"vpmetrics {__version__}. {_PAPERS}"),
    )


def _table(table: Table) -> str:
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in table.headings)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
        f"<caption>{escape(table.title)}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section aria-labelledby="notes"><h2 id="notes">Notes</h2><ul>{items}</ul></section>'


def _section(picture: Picture, title: str, number: int) -> str:
    data = base64.b64encode(picture.png).decode()
    alternative = f"{picture.title} of {title}. The numbers are in the tables above."
    return (
        f'<section aria-labelledby="figure-{number}"><h2 id="figure-{number}">{escape(picture.title)}</h2>'
        f'<figure><img width="{picture.width}" alt="{escape(alternative)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(picture.says)}</figcaption></figure></section>\n"
    )
