"""A release names itself once, can be cited, and keeps what the one before it promised."""

import re
import tomllib

import yaml

from emtc_core import __version__
from tests.test_guide import README, ROOT

CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())
RELEASES = re.findall(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", CHANGELOG, re.MULTILINE)
PERSON, ENTITY = {"given-names", "family-names"}, {"name"}


def test_the_version_is_one_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["version"]["path"] == "emtc_core/__init__.py"
    assert CITATION["version"] == RELEASES[0][0] == __version__, "the newest release is the first in the changelog"
    assert str(CITATION["date-released"]) == RELEASES[0][1]
    assert set(re.findall(r"emtc_lab-([\d.]+)-py3|version ([\d.]+\d)", README.read_text())) == {
        (__version__, ""),
        ("", __version__),
    }


def test_software_and_papers_can_be_cited() -> None:
    assert {"cff-version", "message", "title", "authors"} <= {*CITATION}
    for work in [CITATION, *CITATION["references"]]:
        assert work["title"]
        assert all({*author} in (PERSON, ENTITY) for author in work["authors"])
    method = CITATION["references"][0]
    text = README.read_text()
    assert method["title"] in text
    assert method["url"] in text
    names = " and ".join(f"{each['family-names']}, {each['given-names']}" for each in method["authors"])
    assert f"author = {{{names}}}" in text
