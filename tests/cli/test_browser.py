"""The page as its readers see it, in headless Chromium: wide and on a phone, light and dark, by keyboard, by axe."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from browser import CHROMIUM, VIEWS, browser
from cli.cases import run, write_embeddings

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")

_FOUND = importlib.util.find_spec("axe_playwright_python")
AXE = None if _FOUND is None or _FOUND.origin is None else Path(_FOUND.origin).with_name("axe.min.js")
LOOK = """axe.run(document, {resultTypes: ["violations"]}).then(result => result.violations.map(
    one => `${one.id}: ${one.help}: ${one.nodes.map(node => node.html.slice(0, 200)).join(" ")}`))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One system, in groups and a population, and several of long names."""
    folder = tmp_path_factory.mktemp("pages")
    path = write_embeddings(folder / "e.npz")
    run("evaluate", path, "--population", "3", "--out", folder / "one", "--title", "A title that goes on and on " * 4)
    names = "B2", "a_system_with_a_name_that_is_long_and_has_no_space_to_break_at_epoch_17", "two words"
    run("compare", *(f"{name}={path}" for name in names), "--no-attacks", "--out", folder / "several")
    run("compare", f"before={path}", f"after={path}", "--no-attacks", "--out", folder / "two")
    return [folder / name / "report.html" for name in ("one", "several", "two")]


def look(pages, found):
    """What is found on each page in each view."""

    async def all_views():
        wrong = []
        async with browser() as tab:
            for page in pages:
                for view in VIEWS:
                    await tab.open(page.as_uri(), view)
                    wrong += [f"{page.parent.name}, {view.name}: {what}" for what in await found(tab)]
            return wrong, tab.complaints

    return asyncio.run(all_views())


def test_page_has_no_browser_errors_and_no_horizontal_scroll(pages):
    async def found(tab):
        document = "document.documentElement"
        pixels = await tab.run(f"{document}.scrollWidth - {document}.clientWidth")
        return [pixels] if pixels > 0 else []

    assert look(pages, found) == ([], [])


@pytest.mark.skipif(AXE is None, reason="no axe-playwright-python, which brings axe")
def test_axe_finds_nothing_on_a_page_nor_on_an_enlarged_figure(pages):
    async def found(tab):
        await tab.run(AXE.read_text(encoding="utf-8") + "; 0")
        closed = await tab.run(LOOK)
        await tab.run("document.querySelector('figure button').click()")
        return closed + await tab.run(LOOK)

    assert look(pages, found) == ([], [])


BROKEN = """[...document.querySelectorAll("#results ~ * th, .cards li")].flatMap(cell => {
    const broken = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, word.index); range.setEnd(walker.currentNode, word.index + word[0].length);
        if (range.getClientRects().length > 1) broken.push(word[0]);
    }
    return broken;
})"""
RIGHT_OF_OP = """[...document.querySelectorAll("thead th")].filter(th => th.textContent == "OP")
    .map(th => th.getBoundingClientRect().right).filter(right => right > 0)"""


def test_words_are_not_broken_and_op_column_is_visible(pages):
    async def found(tab):
        await tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        width, edges = await tab.run("window.innerWidth"), await tab.run(RIGHT_OF_OP)
        hidden = [edge for edge in edges if edge > width]
        return [*(await tab.run(BROKEN)), *hidden, *([] if len(edges) > 4 else ["no OP"])]

    assert look(pages[:1], found) == ([], [])


def test_a_page_is_light(pages):
    assert max(page.stat().st_size for page in pages) < 1_000_000


def test_a_figure_enlarges_and_closes_by_keyboard(pages):
    async def found(tab):
        await tab.run("document.querySelector('figure button').focus()")
        states = []
        for key in ("Enter", "Escape", "Enter", "Enter"):
            await tab.press(key)
            states.append(await tab.run("document.querySelector('dialog').open"))
        focused = await tab.run("document.activeElement === document.querySelector('figure button')")
        return [] if states == [True, False, True, False] and focused else [states, focused]

    assert look(pages[:1], found) == ([], [])
