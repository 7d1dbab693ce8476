"""README and guide: short enough to be read, without a dead link, a missing file or a command that does not exist."""

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from typer.main import get_command

from app.cli.main import COMMANDS, make_app
from app.figures.registry import FIGURES, TABLES
from app.ui import guide
from storage.queries.tables import TABLE_NAMES
from tests.bench.__main__ import BENCHMARKS, EXTRA

ROOT = Path(__file__).parent.parent
GUIDE = ROOT / "app" / "guide"
README = ROOT / "README.md"
PAGES = sorted(GUIDE.glob("*.md"))
METHOD_TEXTS = sorted((GUIDE / "method").glob("*.md"))
TEXTS = [README, *PAGES, *METHOD_TEXTS]
SOURCE = ("app/", "emtc_core/", "pages/", "storage/", "tests/", ".ci/")
LATIN = {"β": "beta", "δ": "delta", "Δ_mem": "delta_mem", "μ_w": "mu_w", "τ": "tau", "ξ": "xi"}


class Line(NamedTuple):
    text: str
    place: str


def links_of(file: Path) -> list[str]:
    text = without_code(file.read_text())
    found = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"", text)
    return [link for pair in found for link in pair if link and not re.match(r"[a-z]+:", link)]


def without_code(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands_of(file: Path) -> list[Line]:
    text = file.read_text()
    blocks = "\n".join(re.findall(r"^ *```bash\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL))
    typed = [part.strip() for line in blocks.splitlines() for part in line.split("  #")[0].split(";")]
    quoted = re.findall(r"`((?:EMTC_\w+=\S+ )?emtc [^`\n]+)`", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S))
    found = [re.sub(r"^(exec |EMTC_\w+=\S+ )", "", each) for each in (*typed, *quoted)]
    return [Line(each, file.name) for each in found if each.startswith("emtc ")]


def parse(line: str) -> None:
    """Have the command line read the words as if they were typed; a name alone stands for its whole command."""
    words = [word.strip("[]") for word in shlex.split(line)[1:]]
    if words == ["--help"] or words in ([name] for name in COMMANDS):
        return
    command, rest = get_command(make_app(words[0])).commands[words[0]], words[1:]  # type: ignore[attr-defined]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context(words[0], rest, resilient_parsing=False)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_a_text_is_short(file: Path) -> None:
    longest = {"README.md": 10_000, "findings.md": 14_000}
    assert len(file.read_text()) <= longest.get(file.name, 8000)


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_every_link_and_picture_exists(file: Path) -> None:
    for link in links_of(file):
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        assert target.exists(), f"{file.name} points to {link}"
        assert not anchor or anchor in anchors_of(target), f"{file.name} points to {link}"


@pytest.mark.parametrize("file", TEXTS, ids=lambda file: file.name)
def test_every_file_that_a_text_names_exists(file: Path) -> None:
    quoted = re.findall(r"`([\w./]+)`", file.read_text())
    missing = [place for place in quoted if place.startswith(SOURCE) and not (ROOT / place).exists()]
    assert missing == []


def test_every_page_of_the_guide_is_linked_from_the_readme_and_shown_in_the_app() -> None:
    linked = {link.partition("#")[0] for link in links_of(README)}
    assert [page.name for page in PAGES if f"app/guide/{page.name}" not in linked] == []
    assert sorted(guide.PAGES) == [page.stem for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_its_purpose_and_an_example(page: Path) -> None:
    top, first, *_ = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
    title, purpose, *_ = top.split("\n\n")
    assert title.startswith("# ")
    assert re.fullmatch(r"[^#`|\n].*\.", purpose, re.DOTALL), "a sentence on what the page is for"
    assert (first.startswith("A complete example") and "```" in first) or "\nFor example, " in top


def test_the_glossary_has_few_terms_in_order_with_at_most_two_sentences() -> None:
    text = (GUIDE / "glossary.md").read_text()
    terms = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\Z)", text, re.MULTILINE | re.DOTALL)
    names = [LATIN.get(term, term).lower() for term, _ in terms]
    assert 20 <= len(names) <= 30
    assert names == sorted(names)
    n_sentences = {term: len(re.findall(r"\.(?=\s|$)", explanation.strip())) for term, explanation in terms}
    assert {term: n for term, n in n_sentences.items() if n not in (1, 2)} == {}


@pytest.mark.parametrize("line", [line for file in TEXTS for line in commands_of(file)], ids=lambda line: line.text)
def test_a_command_in_a_text_exists_with_its_options(line: Line) -> None:
    assert line.text.split()[1] in (*COMMANDS, "--help")
    with suppress(typer.Exit):  # of --help
        parse(line.text)
    words = shlex.split(line.text)
    for option, known in (("--figure", FIGURES.keys()), ("--table", {*TABLES, *TABLE_NAMES})):
        assert option not in words or words[words.index(option) + 1] in (*known, "NAME")


def test_a_benchmark_in_a_text_exists() -> None:
    text = "\n".join(file.read_text() for file in TEXTS)
    named = re.findall(r"tests\.bench ((?:[a-z_]+ ?)+)", text)
    columns = re.findall(r"^\| what .*\| benchmark \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    in_columns = [name for rows in columns for name in re.findall(r"\| `([a-z_]+)` \|$", rows, re.MULTILINE)]
    names = {*" ".join(named).split(), *in_columns}
    assert len(names) > 8
    assert names - {*BENCHMARKS, *EXTRA, "all"} == set()


@pytest.mark.parametrize("name", re.findall(r"`(tests/\S+?::\w+)`", (GUIDE / "promises.md").read_text()))
def test_each_promise_names_a_test_that_exists(name: str) -> None:
    file, _, test = name.partition("::")
    assert f"\ndef {test}(" in (ROOT / file).read_text()
