"""Keep what readers of a page see: wide and on a phone, light and dark.

    python tests/bench/page.py report/report.html pictures

Needs Debian's ``chromium``. ``--whole`` keeps all of a page instead of its first screen.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from browser import VIEWS, browser


async def photograph(page: Path, folder: Path, whole: bool) -> None:
    """All views of a page, as files."""
    async with browser() as tab:
        for view in VIEWS:
            await tab.open(page.resolve().as_uri(), view)
            (folder / f"{page.parent.name}_{view.name}.png").write_bytes(
                await tab.photograph(captureBeyondViewport=whole)
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(photograph(arguments.page, arguments.folder, arguments.whole))
