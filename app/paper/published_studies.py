"""The paper's own numbers for each study, from `published_studies.toml`; always shown with where they were measured."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import pandas as pd


@dataclass(frozen=True)
class Published:
    """What the paper reports for a study: where it was measured, a sentence, and a table that may be empty."""

    source: str
    note: str
    table: pd.DataFrame


@cache
def published_studies() -> dict[str, Published]:
    """Read every study's published numbers by the study's name."""
    text = files("app.paper").joinpath("published_studies.toml").read_text(encoding="utf-8")
    return {
        name: Published(part["source"], part["note"], pd.DataFrame(part.get("rows"), columns=part.get("columns")))
        for name, part in tomllib.loads(text).items()
    }


def find_published(study: str, env: str) -> Published | None:
    """Find what the paper reports for a study in an environment."""
    known = published_studies()
    return known.get(f"{study}-football" if env == "grf" else study) or known.get(study)
