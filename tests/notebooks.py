"""The stored notebooks, read without the packages that run them."""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def join_lines(text: str | list[str]) -> str:
    """Return a text of a notebook, which may be stored line by line."""
    return text if isinstance(text, str) else "".join(text)


def read_notebook(name: str) -> list[dict[str, Any]]:
    """Return the cells of a stored notebook, each source as one text."""
    content = json.loads(NOTEBOOKS[name].read_text(encoding="utf-8"))
    for cell in content["cells"]:
        cell["source"] = join_lines(cell["source"])
    return list(content["cells"])
