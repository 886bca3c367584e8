"""Follow every link of a built site: ``python site_links.py FOLDER``.

Links inside the site must lead to a page and an anchor that exist. Links to elsewhere are listed,
not fetched. A page must load nothing from elsewhere.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class PageReader(HTMLParser):
    """Collects what a page links to, what it loads, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note the addresses and the anchor of one tag."""
        values = {name: value or "" for name, value in attributes}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "name" in values:
            self.anchors.add(values["name"])
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        is_canonical = values.get("rel") in ("canonical", "prev", "next")
        if tag in LOADED and LOADED[tag] in values and not is_canonical:
            self.loaded.add(values[LOADED[tag]])


def read_site(folder: Path) -> dict[Path, PageReader]:
    """Return what every page of a site links to, by file."""
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = PageReader()
        pages[path].feed(path.read_text(encoding="utf-8"))
    return pages


def find_target(page: Path, address: str, folder: Path) -> Path:
    """Return the file that an address on a page leads to, whether or not it exists."""
    path = unquote(urlsplit(address).path)
    if path.startswith("/"):
        target = folder / path.lstrip("/")
    elif path:
        target = page.parent / path
    else:
        target = page
    target = target.resolve()
    if target.is_dir():
        target = target / "index.html"
    return target


def check_site(folder: Path) -> tuple[list[str], list[str]]:
    """Return what is wrong with the links of a site, and the links that leave it."""
    pages = read_site(folder)
    if not pages:
        return [f"{folder} holds no page"], []
    problems = []
    elsewhere = set()
    for path, page in pages.items():
        name = path.relative_to(folder)
        for address in sorted(page.links | page.loaded):
            if urlsplit(address).scheme in ("data", "javascript"):
                continue
            if urlsplit(address).scheme or address.startswith("//"):
                elsewhere.add(address)
                if address in page.loaded:
                    problems.append(f"{name} loads {address}")
                continue
            target = find_target(path, address, folder)
            anchor = unquote(urlsplit(address).fragment)
            if not target.exists():
                problems.append(f"{name} links to {address}, which does not exist")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                problems.append(f"{name} links to {address}, an anchor that does not exist")
    return problems, sorted(elsewhere)


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    problems, elsewhere = check_site(site)
    print("Links to elsewhere, not fetched:", *elsewhere, sep="\n  ")
    if problems:
        raise SystemExit("\n".join(problems))
    print("Every link inside the site leads somewhere.")
