"""What the site takes from elsewhere: notebooks, CHANGELOG, CONTRIBUTING, and the API from
``__all__``.
"""

import ast
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

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
PLACES = {  # where a link of a page in the repository leads on the site
    "CHANGELOG.md": "changelog.md",
    ".github/CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}


@event_priority(100)  # before the plugins that render notebooks and docstrings
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is stored outside the folder of the site."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        place = str(notebook.relative_to(ROOT))
        files.append(File(place, str(ROOT), config.site_dir, config.use_directory_urls))
    files.append(File.generated(config, "changelog.md", content=_read_page(ROOT / "CHANGELOG.md")))
    files.append(
        File.generated(
            config, "contributing.md", content=_read_page(ROOT / ".github/CONTRIBUTING.md")
        )
    )
    for page, (module, title) in API_PAGES.items():
        files.append(
            File.generated(config, f"api/{page}.md", content=_write_api_page(module, title))
        )
    for picture in sorted((ROOT / "notebooks/pictures").glob("*.png")):
        files.append(File.generated(config, f"pictures/{picture.name}", abs_src_path=str(picture)))
    return files


def _read_page(path: Path) -> str:
    """Return a page of the repository with links that lead somewhere on the site, or to no link."""

    def replace(match: re.Match[str]) -> str:
        text, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        place = str((path.parent / target).resolve().relative_to(ROOT))
        return f"[{text}]({PLACES[place]})" if place in PLACES else f"`{place}`"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", replace, path.read_text(encoding="utf-8"))


def _write_api_page(module: str, title: str) -> str:
    """Return a page with the docstring of a module and of every name that it exports."""
    place = ROOT / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [f"# {title}", "", ast.get_docstring(tree) or "", ""]
    for name in _exported_names(tree):
        lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines)


def _exported_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        target: Any = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]  # type: ignore[attr-defined]
    raise ValueError("Expected the module to define `__all__`.")
