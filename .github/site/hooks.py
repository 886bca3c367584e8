"""Collect what the site shows: notebooks, CHANGELOG, CONTRIBUTING, and the API by ``__all__``."""

import ast
import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
API_PAGES = {  # page: module, title
    "metrics": ("vpmetrics", "Metrics"),
    "functional": ("vpmetrics.functional", "Functions"),
    "report": ("vpmetrics.report", "Reports"),
    "attacks": ("vpmetrics.attacks", "Attacks"),
    "losses": ("vpmetrics.losses", "Losses"),
    "lightning": ("vpmetrics.lightning", "Lightning"),
    "audio": ("vpmetrics.audio", "Audio"),
    "data": ("vpmetrics.data", "Data"),
    "scoring": ("vpmetrics.scoring", "Scoring"),
}
PAGE_OF_FILE = {  # where a link to a file of the repository leads on the site
    "CHANGELOG.md": "changelog.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
# Parts of a rendered notebook without formulas: tags, code, and the code that a button copies.
NO_FORMULA = re.compile(
    r"(<(?:script|style|pre|code)\b.*?</(?:script|style|pre|code)>"
    r'|<div class="clipboard-copy-txt".*?</div>'
    r"|<[^>]*>)",
    re.DOTALL,
)
ADDRESSES_IN_NOTEBOOKS = [
    (re.compile(r'(?<=href=")(\w+)\.ipynb(?=["#])'), r"../\1/"),
    (re.compile(r'(?<=src=")(pictures/)'), r"../../\1"),
]
FORMULA = re.compile(r"(\$\$?)([^$\s](?:[^$]*[^$\s])?)\1")  # $$ for a line of its own
LOADER = re.compile(
    r"<script\b[^>]*>(?:(?!</script>).)*(?:mathjax|mermaid).*?</script>", re.DOTALL | re.I
)


@event_priority(100)  # before the plugins that render notebooks and docstrings
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is stored outside the folder of the site."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        path = str(notebook.relative_to(ROOT))
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    pages = {
        "changelog.md": _read_page(ROOT / "CHANGELOG.md"),
        "contributing.md": _read_page(ROOT / ".github/CONTRIBUTING.md"),
    }
    for page, (module, title) in API_PAGES.items():
        pages[f"api/{page}.md"] = _write_api_page(module, title)
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    for picture in sorted((ROOT / "notebooks/pictures").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Render the formulas of notebooks here, so that no script is loaded from elsewhere."""
    if not page.file.src_uri.endswith(".ipynb"):
        return content
    content = LOADER.sub("", content)
    for address, place_on_site in ADDRESSES_IN_NOTEBOOKS:
        content = address.sub(place_on_site, content)
    pieces = NO_FORMULA.split(content)
    # Texts and what separates them alternate.
    pieces[::2] = [FORMULA.sub(_render_formula, text) for text in pieces[::2]]
    return "".join(pieces)


def _render_formula(match: re.Match[str]) -> str:
    if match[1] == "$$":
        display = "block"
    else:
        display = "inline"
    return str(convert(html.unescape(match[2]), display=display))


def _read_page(path: Path) -> str:
    """Return a page of the repository with links that lead somewhere on the site, or to no link."""

    def replace(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        file = str((path.parent / target).resolve().relative_to(ROOT))
        if file in PAGE_OF_FILE:
            return f"[{text}]({PAGE_OF_FILE[file]})"
        return f"`{file}`"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", replace, path.read_text(encoding="utf-8"))


def _write_api_page(module: str, title: str) -> str:
    """Return a page with the docstring of a module and of every name that it exports."""
    folder = ROOT / module.replace(".", "/")
    if folder.is_dir():
        path = folder / "__init__.py"
    else:
        path = folder.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [f"# {title}", "", ast.get_docstring(tree) or "", ""]
    for name in _exported_names(tree):
        full_name = f"{module}.{name}"
        if (folder / f"{name}.py").exists():  # a function, in a module of the same name
            full_name = f"{full_name}.{name}"
        lines += [f"::: {full_name}", ""]
    return "\n".join(lines)


def _exported_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        target: Any = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]  # type: ignore[attr-defined]
    raise ValueError("Expected the module to define `__all__`.")
