"""The Guide page: a page by its URL, the search over all pages, and opening a search result."""

import re

import pytest
from streamlit.testing.v1 import AppTest

from app.ui.guide import PAGES, find_sections, mark_words, read_pages
from tests.pages.conftest import read_address
from tests.pages.test_pages import open_page, said


def page_title(app: AppTest) -> str:
    [header] = app.header
    return str(header.value)


def result_titles(app: AppTest) -> list[str]:
    return [button.label.replace("*", "") for button in app.button if str(button.key).startswith("guide-open")]


@pytest.mark.parametrize("name", PAGES)
def test_the_url_selects_the_page(empty, name):
    app = open_page("guide", page=name)
    assert not app.exception
    assert not app.error
    assert page_title(app) == read_pages()[name].title
    assert app.radio[0].value == name
    assert "```" not in said(app)
    assert all(code.proto.wrap_lines for code in app.code)


def test_links_between_pages_stay_in_the_app(seeded):
    app = open_page("guide", page="figures", run=seeded[1])
    assert re.search(rf"\]\(\?run={seeded[1]}&page=glossary\)", said(app))
    assert ".md)" not in said(app)


def test_a_search_finds_the_sections_that_contain_every_word_and_opens_their_page(empty):
    app = open_page("guide", q="sigterm")
    n_results = len(result_titles(app))
    app.text_input(key="guide?q").set_value("sigterm SIGUSR1").run()
    assert result_titles(app)[0] == "Sweeps, workers and clusters: Workers"
    assert len(result_titles(app)) < n_results
    assert ":orange-background[SIGTERM]" in said(app)
    assert ":orange-background[SIGUSR1]" in said(app)
    app.button(key="guide-open-0").click().run()
    assert not app.exception
    assert page_title(app) == "Sweeps, workers and clusters"
    assert read_address(app) == {"page": "sweeps"}


@pytest.mark.parametrize("typed", ["<b>zzz</b>", "("])
def test_typed_markup_is_shown_as_text(empty, typed):
    app = open_page("guide", q=typed)
    assert not app.exception
    assert not app.error
    assert result_titles(app) or "No section contains all of these words" in said(app)


def test_highlighted_text_is_escaped():
    marked = mark_words("a <b>β</b> is $1$ [x]", ["Β", "x]"])
    assert marked == r"a \<b\>:orange-background[β]\</b\> is \$1\$ \[:orange-background[x\]]"


def test_words_of_a_heading_and_each_term_of_the_glossary_are_found():
    found = [(section.page, section.heading) for section in find_sections(["access", "app"])]
    assert ("sharing", "Who can access the app") in found, "access is only in the heading"
    [term] = [section for section in find_sections(["gated", "γ"]) if section.page == "glossary"]
    assert term.heading == "incentive"
    assert term.text.startswith(
        "r_p (return): the term that the memory adds to the reward in the target, γ ρ (H(s′) − max Q⁻(s′))"
    )


def test_sections_are_plain_text():
    text = " ".join(section.text for page in read_pages().values() for section in page.sections)
    assert not re.search(r"```|(?<!\w)\*\*[^*]+\S\*\*|\]\(|\|--|\| \|", text)  # code may contain "**"
    assert "The settings are those of the preset paper, with one exception" in text
    assert "emtc worker" in text
