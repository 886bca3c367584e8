"""The page as its readers see it, in headless Chromium.

Wide and on a phone, light and dark, by keyboard, by axe.
"""

import shutil

import pytest
from cli.cases import run, write_embeddings
from extras import import_or_skip

Axe = import_or_skip("axe_playwright_python.sync_playwright").Axe
sync_playwright = import_or_skip("playwright.sync_api").sync_playwright

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]
SCROLLED = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """One system, in groups and a population, and several of long names."""
    folder = tmp_path_factory.mktemp("pages")
    path = write_embeddings(folder / "e.npz")
    run(
        "evaluate",
        path,
        "--population",
        "3",
        "--out",
        folder / "one",
        "--title",
        "A title that goes on and on " * 4,
    )
    names = (
        "B2",
        "a_system_with_a_name_that_is_long_and_has_no_space_to_break_at_epoch_17",
        "two words",
    )
    run(
        "compare",
        *(f"{name}={path}" for name in names),
        "--no-attacks",
        "--out",
        folder / "several",
    )
    run("compare", f"before={path}", f"after={path}", "--no-attacks", "--out", folder / "two")
    return [folder / name / "report.html" for name in ("one", "several", "two")]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(params=[(1400, 900), (390, 844)], ids=["wide", "phone"])
def pages(request, browser, paths):
    """The pages in light and in dark; they must not complain."""
    width, height = request.param
    contexts = [
        browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, is_mobile=width < 600
        )
        for scheme in ("light", "dark")
    ]
    pages = [context.new_page() for context in contexts for _ in paths]
    complaints = []
    for page, path in zip(pages, 2 * paths, strict=True):
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.goto(path.as_uri())
    yield pages
    assert complaints == []
    for context in contexts:
        context.close()


def test_no_page_scrolls_horizontally(pages):
    assert [page.evaluate(SCROLLED) for page in pages] == [0] * len(pages)


def test_axe_finds_nothing_on_a_page_nor_on_an_enlarged_figure(pages):
    for page in pages:
        closed = Axe().run(page)
        page.evaluate("document.querySelector('figure button').click()")
        for found in (closed, Axe().run(page)):
            assert found.violations_count == 0, found.generate_report()


BROKEN = """[...document.querySelectorAll("#results ~ * th, .cards li")].flatMap(cell => {
    const broken = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(walker.currentNode, word.index);
        range.setEnd(walker.currentNode, word.index + word[0].length);
        if (range.getClientRects().length > 1) broken.push(word[0]);
    }
    return broken;
})"""
RIGHT_OF_CONDITIONS = """[...document.querySelectorAll("thead th")]
    .filter(th => /^(OP|PP)$/.test(th.textContent))
    .map(th => th.getBoundingClientRect().right).filter(right => right > 0)"""


SCALE_OF_PICTURES = """[...document.querySelectorAll("figure img")]
    .map(img => img.clientWidth / img.getAttribute("width"))"""
UNSAID = """[...document.querySelectorAll(".scroll, .panels")]
    .filter(one => one.scrollWidth > one.clientWidth + 2)
    .filter(one => !getComputedStyle(one, "::before").content.includes("scroll"))
    .length"""


def test_letters_of_figures_are_not_shrunk_and_what_scrolls_says_so(pages):
    for page in pages:
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        page.wait_for_timeout(100)  # for the observer of widths
        assert min(page.evaluate(SCALE_OF_PICTURES)) > 0.68  # 10 points become 9 pixels
        assert page.evaluate(UNSAID) == 0


def test_words_are_not_broken_and_conditions_are_visible(pages):
    for page in pages[::3]:  # of one system
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate(BROKEN) == []
        edges = page.evaluate(RIGHT_OF_CONDITIONS)
        assert len(edges) > 8
        assert max(edges) <= page.evaluate("window.innerWidth")


def test_a_page_is_light(paths):
    assert max(path.stat().st_size for path in paths) < 1_000_000


def test_a_figure_enlarges_and_closes_by_keyboard(pages):
    page = pages[0]
    states = []
    page.focus("figure button")
    for key in ("Enter", "Escape", "Enter", "Enter"):
        page.keyboard.press(key)
        states.append(page.evaluate("document.querySelector('dialog').open"))
    assert states == [True, False, True, False]
    assert page.evaluate("document.activeElement === document.querySelector('figure button')")
