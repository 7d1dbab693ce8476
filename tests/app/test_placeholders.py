"""What an empty field shows as an example must work when it is typed."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import app
from app.analysis.settings import parse_steps
from storage.engine import open_database
from storage.queries.episodes import find_episodes, find_playbacks
from storage.queries.search_terms import parse_text, split_search
from storage.sql_console.query import run_query

UI = Path(app.__file__).parent / "ui"
PROSE = frozenset(
    {
        *("An example", "–", "none", "any", "not set", "Choose a run", "a bundle", "All that match", "All values"),
        *("choose, or type a new tag", "words of title or text", "a key, a label or a word", "click, or type"),
        *("Auto-generated if empty", "type a return", "Markdown, maths as $β = 1$"),
    }
)
"""Words about what may be typed, no example of it."""
PATHS = frozenset({"~/Downloads/study.emtc", "my_game:make"})
"""Names that stand for the reader's own."""


def placeholders() -> set[str]:
    found = set()
    for path in UI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "placeholder":
                texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and text.strip(", ")}
    return found


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    return open_database(f"sqlite:///{tmp_path_factory.mktemp('placeholders') / 'x.db'}")


PARSERS: dict[str, Callable] = {
    "corridor win_rate>0.8": lambda db, text: parse_text(text),
    "corridor tag=paper": lambda db, text: parse_text(text),
    "won return>5": lambda db, text: [find(db, "x", text) for find in (find_episodes, find_playbacks)],
    "select name, win_rate from runs": lambda db, text: run_query(db, text),
    "50000, 100000": lambda db, text: parse_steps(text) or pytest.fail(text),
    "tau": lambda db, text: text,
}


def test_every_placeholder_is_an_example_that_parses_or_says_what_may_be_typed(db):
    shown = placeholders()
    assert len(shown) > 10
    assert shown - PROSE - PATHS <= PARSERS.keys(), "add it to PARSERS with what reads it"
    for text in shown & PARSERS.keys():
        PARSERS[text](db, text)


@pytest.mark.parametrize(("typed", "same"), [("word, map=3m", "word map=3m"), ("lost, return<5", "lost return<5")])
def test_commas_between_what_is_sought_mean_nothing(typed, same):
    assert split_search(typed) == split_search(same)


def test_commas_within_quotes_and_words_stay():
    assert [term.value for term in split_search('"one, two" 1,2')] == ["one, two", "1,2"]
