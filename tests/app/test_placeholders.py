"""The example in an empty field must be valid input."""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

import app
from app.analysis.settings import parse_steps
from app.figures.image_options import ImageOptions
from storage.engine import open_database
from storage.queries.episode_search import find_episodes, find_playbacks
from storage.queries.search_terms import parse_text, split_search
from storage.sql.query import run_query

UI = Path(app.__file__).parent / "ui"
PROSE = frozenset(
    {
        *("Select an example", "–", "none", "any", "not set", "Select a run", "All that match", "Select a tag"),
        *("Select or type a tag", "Words in title or text", "Key, label or word"),
        *(
            "Auto-generated if empty",
            "Search settings: tau, buffer, seed",
            "Type a return",
            "Find runs",
            "Search metrics",
            "Markdown, formulas as $β = 1$",
        ),
    }
)
"""Descriptions of the input, not examples."""
PATHS = frozenset({"~/Downloads/study.emtc", "my_game:make"})
"""Examples of paths that do not exist here."""


def placeholders() -> set[str]:
    texts = set()
    for path in UI.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "placeholder":
                constants = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
                texts |= {text for text in constants if isinstance(text, str) and text.strip(", ")}
    return texts


@pytest.fixture(scope="module")
def db(tmp_path_factory):
    return open_database(f"sqlite:///{tmp_path_factory.mktemp('placeholders') / 'x.db'}")


PARSERS: dict[str, Callable] = {
    "corridor final_rate>0.8": lambda db, text: parse_text(text),
    "corridor tag=paper": lambda db, text: parse_text(text),
    "won return>5": lambda db, text: [find(db, "x", text) for find in (find_episodes, find_playbacks)],
    "select name, win_rate from runs": lambda db, text: run_query(db, text),
    "50000, 100000": lambda db, text: parse_steps(text) or pytest.fail(text),
    "tau": lambda db, text: text,
    "A=B": lambda db, text: ImageOptions.read({"label": text}),
}


def test_every_placeholder_is_a_valid_example_or_a_description(db):
    texts = placeholders()
    assert len(texts) > 10
    assert texts - PROSE - PATHS <= PARSERS.keys(), "add it to PARSERS with its parser"
    for text in texts & PARSERS.keys():
        PARSERS[text](db, text)


@pytest.mark.parametrize(
    ("typed", "terms"),
    [("word, 3m", ["word", "3m"]), ("lost,word", ["lost,word"]), ('"one, two" 1,2', ["one, two", "1,2"])],
)
def test_a_comma_separates_terms_only_before_a_space_and_outside_of_quotes(typed, terms):
    assert [term.value for term in split_search(typed)] == terms
