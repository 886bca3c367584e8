"""The script that follows the links of the site."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci/site_links.py"


@pytest.fixture(scope="module")
def site_links():
    specification = importlib.util.spec_from_file_location("site_links", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def write_site(folder, home):
    (folder / "guide").mkdir()
    (folder / "guide/index.html").write_text('<h1 id="top">Guide</h1><a href="..">home</a>')
    (folder / "index.html").write_text(home)


@pytest.mark.parametrize(
    "link", ['<a href="guide/">', '<a href="guide/#top">', '<a href="/guide/">', '<a href="#">']
)
def test_links_that_lead_somewhere_are_no_problem(site_links, tmp_path, link):
    write_site(tmp_path, link)
    assert site_links.check_site(tmp_path) == ([], [])


@pytest.mark.parametrize(
    ("tag", "problem"),
    [
        ('<a href="gone/">', "index.html links to gone/, which does not exist"),
        ('<a href="guide/#end">', "index.html links to guide/#end, an anchor that does not exist"),
        ('<img src="gone.png">', "index.html links to gone.png, which does not exist"),
        ('<script src="https://cdn.example/x.js">', "index.html loads https://cdn.example/x.js"),
    ],
)
def test_links_that_lead_nowhere_and_foreign_scripts_are_named(site_links, tmp_path, tag, problem):
    write_site(tmp_path, tag)
    assert site_links.check_site(tmp_path)[0] == [problem]


def test_links_to_elsewhere_are_listed(site_links, tmp_path):
    write_site(tmp_path, '<a href="https://example.org/">')
    assert site_links.check_site(tmp_path) == ([], ["https://example.org/"])


def test_an_empty_folder_is_no_site(site_links, tmp_path):
    assert site_links.check_site(tmp_path) == ([f"{tmp_path} holds no page"], [])
