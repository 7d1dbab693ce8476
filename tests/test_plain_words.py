"""Comments, docstrings, texts and names of the clean packages use none of the words that a reader has to decode.

The words are listed in issue 37 and in the house style: software does not say, tell, hear or know anything, and a name
says what the value is, not that somebody asked for it, found it or kept it.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "app", "emtc_core", "pages", "storage",
)  # fmt: skip
"""Packages without a hit."""
WORDS = re.compile(
    r"\b(?:told|tells?|telling|said|says?|saying|heard|hears?|knows|doubts?|owes?|owed|obeys?|forgets?"
    r"|stands?|stood|lies|holds?|held|nobody|somebody|anybody|whoever|strange|strangers?|anew|beside"
    r"|of (?:its|his|her|their|our|my|one's) own|from outside|as one likes"
    r"|(?<!there )is no(?! longer| more than)|(?<!there )are no(?! longer| more than))\b",
    re.IGNORECASE,
)
NAMES = frozenset((
    "told", "said", "heard", "asked", "found", "drawn", "shown", "known", "wanted", "seen", "kept", "lost", "own",
    "each", "some", "left_out", "nobody", "somebody",
))  # fmt: skip
"""Variables, arguments and attributes. Only whole names count: `found` is refused, `found_nodes` is not."""
VERBS = ("say", "tell", "why", "doubt", "hint", "quote")
"""First words of functions."""
ALLOWED = {
    ("app/analysis/collapse.py", "tell"): "the first words of a verdict, as in significance.py",
    ("app/analysis/study_answer.py", "tell"): 'the verdict "cannot tell", as in significance.py',
    ("app/analysis/significance.py", "tell"): 'the verdict "cannot tell" is a value in tables and in stored views',
    ("app/cli/export.py", "beside"): "the option --beside of emtc export",
    ("app/figures/named/live.py", "beside"): "the name of an option of figures, also in stored views",
    ("app/figures/named/findings.py", "tell"): 'the verdict "cannot tell", as in significance.py',
    ("app/replay/replay.py", "hold"): "the name of an action in other environments",
    ("app/ui/live/cells.py", "beside"): "the name of an option of figures, in stored views",
    ("app/ui/replay/episode_choice.py", "beside"): "a URL parameter",
    ("app/ui/run/settings.py", "beside"): "a URL parameter",
    ("app/ui/widgets/tour.py", "beside"): "a URL parameter",
    ("app/ui/findings/panels.py", "tell"): 'the verdict "cannot tell", as in significance.py',
    ("emtc_core/envs/skirmish/combat.py", "stand"): "an order of the game",
    ("emtc_core/envs/skirmish/movement.py", "stand"): "an order of the game",
}
"""Words that are part of a contract or a term, by file, with the reason."""

Hit = tuple[str, int, str]


def list_files() -> list[Path]:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    return [file for file in files if "versions" not in file.parts]


def list_texts(source: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """List comments and strings, each with its line."""
    with source.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())


def list_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """List the names that are defined, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def list_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def find_words(file: Path) -> list[Hit]:
    name, tree = str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))
    hits = [(name, line, word) for line, text in list_texts(file, tree) for word in WORDS.findall(text)]
    return [hit for hit in hits if (hit[0], hit[2].lower()) not in ALLOWED]


def find_names(file: Path) -> list[Hit]:
    name, tree = str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8"))
    hits = [(name, line, word) for line, word in list_names(tree) if word.strip("_") in NAMES]
    return hits + [
        (name, line, word) for line, word in list_functions(tree) if word.lstrip("_").partition("_")[0] in VERBS
    ]


@pytest.mark.parametrize("find", [find_words, find_names])
def test_no_word_of_the_list_is_used(find) -> None:
    hits = [hit for file in list_files() for hit in find(file)]
    assert not hits, "\n".join(f"{name}:{line}: {word}" for name, line, word in sorted(set(hits)))


def test_every_allowed_word_is_used_where_it_is_allowed() -> None:
    for name, word in ALLOWED:
        assert re.search(rf"\b{word}\b", (ROOT / name).read_text(encoding="utf-8"), re.IGNORECASE), (name, word)


def test_a_word_is_found_in_a_comment_a_docstring_a_text_and_a_name(tmp_path: Path, monkeypatch) -> None:
    source = 'def why(told):\n    """Nobody knows."""\n    return f"{told} is no run"  # as it stands\n'
    (tmp_path / "file.py").write_text(source)
    monkeypatch.setattr("tests.test_plain_words.ROOT", tmp_path)
    words = [word for _, _, word in find_words(tmp_path / "file.py")]
    assert sorted(words) == ["Nobody", "is no", "knows", "stands"]
    assert [word for _, _, word in find_names(tmp_path / "file.py")] == ["told", "why"]
