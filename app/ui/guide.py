"""The Guide page, a tab of Learn: shows one page of `app/guide`, or searches all of them."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple
from urllib.parse import urlencode

import streamlit as st

from app.analysis.format import escape_markdown
from app.ui import messages, page_url
from app.ui.home import start
from app.ui.page_state import Choice, Text

FOLDER = Path(__file__).resolve().parents[1] / "guide"
GLOSSARY = "glossary"
PAGES = (
    "five_minutes",
    "runs",
    "gpu",
    "sweeps",
    "scripts",
    "figures",
    "environments",
    "plugins",
    "extending",
    "extending_app",
    "sharing",
    "promises",
    "troubleshooting",
    "measured",
    "findings",
    "gallery",
    GLOSSARY,
)
PAGE, SEARCH = Choice("page", "guide"), Text("q", "guide")
MAX_EXCERPT_LENGTH = 600
_MARKDOWN_TO_TEXT = (
    (re.compile(r"^ *```.*\n?", re.MULTILINE), ""),
    (re.compile(r"^\|[-|: ]+\|$\n?", re.MULTILINE), ""),
    (re.compile(r"(?: \|)+$", re.MULTILINE), ";"),
    (re.compile(r"^\| ", re.MULTILINE), ""),
    (re.compile(r"(?: \|)+ "), " · "),
    (re.compile(r"^- ", re.MULTILINE), "• "),
    (re.compile(r"!\[[^\]]*\]\([^)\s]+\)"), ""),
    (re.compile(r"\[([^\]]+)\]\([^)\s]+\)"), r"\1"),
    (re.compile(r"`([^`]+)`"), r"\1"),
    (re.compile(r"(?<!\w)(\*{1,2})(?=\S)([^*]+)(?<=\S)\1(?!\w)"), r"\2"),
    (re.compile(r"^#+ ", re.MULTILINE), ""),
    (re.compile(r"\s+"), " "),
)
"""Replacements that turn Markdown into plain text, applied in this order.

Fences of code blocks, then four of tables (separator line, end, start and borders of a row), list items, pictures,
links, code, bold and italic text, headings, and white space.
"""
_PICTURE = re.compile(r"^!\[.+\]\((pictures/[\w/-]+\.png)\)$", re.MULTILINE)
_PAGE_LINK = re.compile(r"\]\((\w+)\.md(?:#[\w-]*)?\)")
_CODE_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Section(NamedTuple):
    """The part of a page below one heading."""

    page: str
    heading: str  # empty for the text above the first heading
    text: str  # plain text on one line


class Page(NamedTuple):
    """One page of the guide."""

    name: str
    title: str
    text: str  # Markdown, without the title

    @property
    def sections(self) -> list[Section]:
        """The sections in order. In the glossary, each term is a section."""
        pattern = r"^- \*\*(.+?)\*\*[:,]? " if self.name == GLOSSARY else r"^##+ (.+)$"
        parts = re.split(pattern, self.text, flags=re.MULTILINE)
        return [
            Section(self.name, heading, _to_plain_text(text))
            for heading, text in zip(["", *parts[1::2]], parts[::2], strict=True)
        ]


@cache
def read_pages() -> dict[str, Page]:
    """Read all pages: name → page, in the order of `PAGES`."""
    pages = {}
    for name in PAGES:
        title, _, text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").partition("\n")
        pages[name] = Page(name, title.removeprefix("# "), text.strip())
    return pages


def find_sections(words: Sequence[str]) -> list[Section]:
    """Find the sections whose heading or text contains all words, ignoring case."""
    lower_words = [word.casefold() for word in words]
    sections = [section for page in read_pages().values() for section in page.sections]
    return [
        section
        for section in sections
        if all(word in f"{section.heading} {section.text}".casefold() for word in lower_words)
    ]


def mark_words(text: str, words: Sequence[str]) -> str:
    """Write plain text as escaped Markdown with the words highlighted."""
    any_word = "|".join(map(re.escape, words))
    pieces = re.split(f"({any_word})", text, flags=re.IGNORECASE)  # every second piece is one of the words
    result = []
    for number, piece in enumerate(pieces):
        is_word = number % 2 == 1
        result.append(f":orange-background[{escape_markdown(piece)}]" if is_word else escape_markdown(piece))
    return "".join(result)


def show() -> None:
    """Draw the search and the list of pages, then the search results or the selected page."""
    pages = read_pages()
    with st.container(key="guide_columns", horizontal=True, gap="medium"):
        left, right = st.container(), st.container()
    with left:
        words = (st.text_input("Search", **SEARCH.bind(), type="search") or "").split()
        name = st.radio("Page", **PAGE.bind(list(pages), lambda name: pages[name].title)) or PAGES[0]
    with right:
        if words:
            _show_results(words)
        else:
            if name == PAGES[0]:
                start.show_first_steps()
            st.header(pages[name].title, anchor=False)
            show_text(pages[name].text)


def show_text(text: str) -> None:
    """Draw Markdown of the guide. Long lines of its code blocks wrap, so that no command is cut off."""
    before, *parts = _CODE_BLOCK.split(text)  # then language, code and the text after it, for each block
    _show_text_and_pictures(before)
    for language, code, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        st.code(dedent(code).rstrip("\n"), language=language or None, wrap_lines=True)
        _show_text_and_pictures(after)


def _show_results(words: Sequence[str]) -> None:
    sections = find_sections(words)
    if not sections:
        messages.empty("No section contains all of these words.", "Remove a word, or select a page on the left.")
    for number, section in enumerate(sections):
        title = read_pages()[section.page].title
        with st.container(border=True):
            st.button(
                f"**{title}**: {escape_markdown(section.heading)}" if section.heading else f"**{title}**",
                key=f"guide-open-{number}", type="tertiary", on_click=_open_page, args=(section.page,),
            )  # fmt: skip
            st.markdown(mark_words(_make_excerpt(section.text, words), words))


def _show_text_and_pictures(text: str) -> None:
    """Draw Markdown that has no code blocks. Its pictures, each on a separate line, are drawn as images."""
    first, *parts = _PICTURE.split(_replace_links(text))  # text, then path and text for each picture
    st.markdown(first)
    for path, rest in zip(parts[::2], parts[1::2], strict=True):
        st.image(FOLDER / path)
        st.markdown(rest)


def _open_page(name: str) -> None:
    """Select a page and clear the search."""
    PAGE.write(None if name == PAGES[0] else name)
    SEARCH.write(None)


def _replace_links(text: str) -> str:
    """Replace links to files of the guide by links to its pages in the app; keep other URL parameters."""
    other_parameters = page_url.read_others((PAGE.name, SEARCH.name))
    return _PAGE_LINK.sub(lambda match: f"](?{urlencode({**other_parameters, PAGE.name: match[1]})})", text)


def _to_plain_text(markdown: str) -> str:
    for pattern, replacement in _MARKDOWN_TO_TEXT:
        markdown = pattern.sub(replacement, markdown)
    return markdown.strip()


def _make_excerpt(text: str, words: Sequence[str]) -> str:
    """Return at most `MAX_EXCERPT_LENGTH` characters of a text, around the first of the words."""
    if len(text) <= MAX_EXCERPT_LENGTH:
        return text
    positions = [text.casefold().find(word.casefold()) for word in words]
    first = min((position for position in positions if position >= 0), default=0)
    start = max(0, min(first - MAX_EXCERPT_LENGTH // 3, len(text) - MAX_EXCERPT_LENGTH))
    end = start + MAX_EXCERPT_LENGTH
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
