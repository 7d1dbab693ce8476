"""Write the tables and the figure of the guide's page *Findings* from the two bundles that are part of the program.

    python -m tests.tools.findings

A table is written in place of the first table below its heading. The texts around the tables are written by hand;
`tests/app/test_findings.py` compares their numbers with the bundles.
"""

import io
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from app.analysis.comparable import select_runs
from app.analysis.tables import export_table, make_plain_table
from app.figures.registry import TABLES, find_figure
from app.figures.render.export import export_figure
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import open_database

GUIDE = Path(__file__).parents[2] / "app" / "guide"
PICTURE_WIDTH = 1350  # pixels
FIRST_COLUMNS = ("claim", "task", "compared", "measure", "n", "estimate", "p (Holm)", "verdict")
CONFIRMATORY_COLUMNS = ("claim", "compared", "measure", "n", "estimate", "p (Holm)", "verdict", "detectable")
TABLES_OF_THE_GUIDE = (
    ("## The table", "first-study.emtc", "findings", FIRST_COLUMNS),
    ("## What the confirmatory study shows", "confirmatory-study.emtc", "claims", CONFIRMATORY_COLUMNS),
)


def main() -> None:
    """Write the tables and the figure."""
    page = GUIDE / "findings.md"
    text = page.read_text(encoding="utf-8")
    for heading, bundle, table, columns in TABLES_OF_THE_GUIDE:
        text = replace_table(text, heading, tabulate(bundle, table, columns))
    page.write_text(text, encoding="utf-8")
    picture = Image.open(io.BytesIO(draw_curves("confirmatory-study.emtc"))).convert("RGB")
    picture.thumbnail((PICTURE_WIDTH, PICTURE_WIDTH))
    picture.quantize(256).save(GUIDE / "confirmatory-study.png", optimize=True)


def tabulate(bundle: str, table: str, columns: Sequence[str]) -> str:
    """Return columns of a table of the runs in a bundle, as Markdown."""
    with tempfile.TemporaryDirectory() as cache:
        db = open_database(cache_bundle(GUIDE / bundle, cache=Path(cache)).url, read_only=True)
        try:
            frame = TABLES[table].make(db, select_runs(db)).frame
        finally:
            db.dispose()
    shown = [column for column in columns if column in frame]  # without a verdict there is no detectable difference
    return export_table(make_plain_table(frame[shown]), "markdown").decode()


def replace_table(text: str, heading: str, table: str) -> str:
    """Replace the first Markdown table below a heading."""
    before, found, after = text.partition(f"{heading}\n")
    if not found:
        raise ValueError(f"no heading {heading!r}")
    old = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    if old is None:
        raise ValueError(f"no table below {heading!r}")
    return before + found + after[: old.start()] + table.strip() + "\n" + after[old.end() :]


def draw_curves(bundle: str) -> bytes:
    """Draw the smoothed win rates of the study in a bundle as PNG."""
    kind = find_figure("study-win-rates")
    with tempfile.TemporaryDirectory() as cache:
        db = open_database(cache_bundle(GUIDE / bundle, cache=Path(cache)).url, read_only=True)
        try:
            figure = kind.make(db, select_runs(db), kind.read_options({}))
        finally:
            db.dispose()
    return export_figure(figure, "png")


if __name__ == "__main__":
    main()
