"""Write the report of each shipped study into the guide's page *Findings*: the table of claims and the win rates.

    python -m tests.tools.findings

A study is reported if the guide's folder contains the bundle with its runs: `first-study.emtc` for `first.study.toml`.
The table is written in place of the first table below the heading "What the first study shows". The texts around the
tables are written by hand; `tests/app/test_findings.py` compares their numbers with the bundles.
"""

import io
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from app.analysis.findings import read_studies
from app.analysis.results import select_runs
from app.analysis.study_plans import StudyPlan, list_plans
from app.analysis.tables import export_table, make_plain_table
from app.figures.registry import TABLES, find_figure
from app.figures.render.export import export_figure
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import Database, open_database
from storage.runs.rows import RunRow

GUIDE = Path(__file__).parents[2] / "app" / "guide"
PICTURE_WIDTH = 1350  # pixels


def main() -> None:
    """Write the tables and the figures."""
    page = GUIDE / "findings.md"
    text = page.read_text(encoding="utf-8")
    for plan in list_reported_plans():
        with open_study(plan) as (db, rows):
            text = replace_table(text, get_heading(plan), write_claims(db, rows))
            picture = Image.open(io.BytesIO(draw_win_rates(db, rows))).convert("RGB")
        picture.thumbnail((PICTURE_WIDTH, PICTURE_WIDTH))
        picture.quantize(256).save(GUIDE / f"{plan.name}-study.png", optimize=True)
    page.write_text(text, encoding="utf-8")


def list_reported_plans() -> list[StudyPlan]:
    """List the plans whose runs are in a bundle of the guide."""
    return [plan for plan in list_plans() if get_bundle(plan).exists()]


def get_bundle(plan: StudyPlan) -> Path:
    """Return the path of the bundle with the runs of a study."""
    return GUIDE / f"{plan.name}-study.emtc"


def get_heading(plan: StudyPlan) -> str:
    """Return the heading of the section about a study."""
    title = plan.title[0].lower() + plan.title[1:]
    return f"## What the {title} shows"


@contextmanager
def open_study(plan: StudyPlan) -> Generator[tuple[Database, tuple[RunRow, ...]]]:
    """Open the bundle of a study. Yield its database and the runs of the study."""
    with tempfile.TemporaryDirectory() as cache:
        db = open_database(cache_bundle(get_bundle(plan), cache=Path(cache)).url, read_only=True)
        try:
            studies = read_studies(db, select_runs(db))
            yield db, next(study.rows for study in studies if study.plan.name == plan.name)
        finally:
            db.dispose()


def write_claims(db: Database, rows: tuple[RunRow, ...]) -> str:
    """Write the table of claims as Markdown, without its caption."""
    table = TABLES["claims"].make(db, rows)
    return export_table(make_plain_table(table.frame), "markdown").decode()


def draw_win_rates(db: Database, rows: tuple[RunRow, ...]) -> bytes:
    """Draw the smoothed win rates of a study as PNG."""
    kind = find_figure("study-win-rates")
    return export_figure(kind.make(db, rows, kind.read_options({})), "png")


def replace_table(text: str, heading: str, table: str) -> str:
    """Replace the first Markdown table below a heading."""
    before, found_heading, after = text.partition(f"{heading}\n")
    if not found_heading:
        raise ValueError(f"no heading {heading!r}")
    old = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    if old is None:
        raise ValueError(f"no table below {heading!r}")
    return before + found_heading + after[: old.start()] + table.strip() + "\n" + after[old.end() :]


if __name__ == "__main__":
    main()
