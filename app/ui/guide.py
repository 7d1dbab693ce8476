"""The guide's pages as they stand in `app/guide`: one is read, or all are searched."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import in_url, messages, state

FOLDER = Path(__file__).resolve().parents[1] / "guide"
GLOSSARY = "glossary"
PAGES = (
    "runs",
    "gpu",
    "sweeps",
    "scripts",
    "figures",
    "environments",
    "plugins",
    "extending",
    "sharing",
    "promises",
    "troubleshooting",
    "measured",
    "findings",
    GLOSSARY,
)
PAGE, SEARCH = "page", "q"
LONGEST_EXCERPT = 600
_PLAIN = (
    (re.compile(r"^ *```.*\n?", re.MULTILINE), ""),
    (re.compile(r"^\|[-|: ]+\|$\n?", re.MULTILINE), ""),
    (re.compile(r"(?: \|)+$", re.MULTILINE), ";"),
    (re.compile(r"^\| ", re.MULTILINE), ""),
    (re.compile(r"(?: \|)+ "), " · "),
    (re.compile(r"^- ", re.MULTILINE), "• "),
    (re.compile(r"\[([^\]]+)\]\([^)\s]+\)"), r"\1"),
    (re.compile(r"(\*{1,2}|`)([^*`]+)\1"), r"\2"),
    (re.compile(r"^#+ ", re.MULTILINE), ""),
    (re.compile(r"\s+"), " "),
)
"""What of Markdown goes or changes, in this order, so that plain text is left."""
_TO_PAGE = re.compile(r"\]\((\w+)\.md(?:#[\w-]*)?\)")


class Section(NamedTuple):
    """A part of a page under one heading."""

    page: str
    heading: str  # empty above the first one
    text: str  # plain, on one line


class Page(NamedTuple):
    """One page of the guide."""

    name: str
    title: str
    text: str  # Markdown, without the title

    @property
    def sections(self) -> list[Section]:
        """Its parts in order; in the glossary each term is one."""
        begins = r"^- \*\*(.+?)\*\*[:,]? " if self.name == GLOSSARY else r"^##+ (.+)$"
        parts = re.split(begins, self.text, flags=re.MULTILINE)
        return [
            Section(self.name, heading, _flatten(text))
            for heading, text in zip(["", *parts[1::2]], parts[::2], strict=True)
        ]


@cache
def read_pages() -> dict[str, Page]:
    """Every page by its name, in the order in which they are listed."""
    pages = {}
    for name in PAGES:
        title, _, text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")
        pages[name] = Page(name, title.removeprefix("# "), text.strip())
    return pages


def find_sections(words: Sequence[str]) -> list[Section]:
    """The sections that hold all of these words, in heading or text, whatever their case."""
    wanted = [word.casefold() for word in words]
    sections = [section for page in read_pages().values() for section in page.sections]
    return [each for each in sections if all(word in f"{each.heading} {each.text}".casefold() for word in wanted)]


def mark_words(text: str, words: Sequence[str]) -> str:
    """Write plain text as Markdown in which the words stand out; nothing in it is read as markup."""
    pieces = re.split(f"({'|'.join(map(re.escape, words))})", text, flags=re.IGNORECASE)
    marked = [f":orange-background[{escape_markdown(piece)}]" for piece in pieces[1::2]]
    plain = map(escape_markdown, pieces[::2])
    return "".join(f"{before}{word}" for before, word in zip(plain, [*marked, ""], strict=True))


def show() -> None:
    """Draw search and choice of a page, then what was found, or the page."""
    pages = read_pages()
    left, right = st.columns([1, 4], gap="large")
    with left:
        words = (st.text_input("Search", **in_url.text("guide", SEARCH), type="search") or "").split()
        bound = in_url.one("guide", PAGE, list(pages))
        name = st.radio("Page", format_func=lambda each: pages[each].title, **bound) or PAGES[0]
    with right:
        if words:
            _show_found(words)
        else:
            st.header(pages[name].title, anchor=False)
            st.markdown(_link_within_app(pages[name].text))


def _show_found(words: Sequence[str]) -> None:
    found = find_sections(words)
    if not found:
        messages.empty("No section holds these words.", "Take a word away, or choose a page on the left.")
    for number, section in enumerate(found):
        title = read_pages()[section.page].title
        with st.container(border=True):
            st.button(
                f"**{title}**: {escape_markdown(section.heading)}" if section.heading else f"**{title}**",
                key=f"guide-open-{number}", type="tertiary", on_click=_open, args=(section.page,),
            )  # fmt: skip
            st.markdown(mark_words(_cut(section.text, words), words))


def _open(name: str) -> None:
    """Show a page from now on, instead of what was found."""
    st.session_state[f"guide-{PAGE}"], st.session_state[f"guide-{SEARCH}"] = name, ""
    state.write(PAGE, None if name == PAGES[0] else name)
    state.write(SEARCH, None)


def _link_within_app(text: str) -> str:
    """Let links to other pages of the guide lead to them in the app, with the rest of the address as it is."""
    rest = {key: value for key, value in st.query_params.items() if key not in (PAGE, SEARCH)}
    return _TO_PAGE.sub(lambda link: f"](?{urlencode({**rest, PAGE: link[1]})})", text)


def _flatten(markdown: str) -> str:
    for pattern, plain in _PLAIN:
        markdown = pattern.sub(plain, markdown)
    return markdown.strip()


def _cut(text: str, words: Sequence[str]) -> str:
    """The part of a text around the first of the words."""
    if len(text) <= LONGEST_EXCERPT:
        return text
    places = [text.casefold().find(word.casefold()) for word in words]
    first = min((place for place in places if place >= 0), default=0)
    start = max(0, min(first - LONGEST_EXCERPT // 3, len(text) - LONGEST_EXCERPT))
    end = start + LONGEST_EXCERPT
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
