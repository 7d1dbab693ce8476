"""Make the guide's gallery: a small picture of each figure and table of the example study, and the page with them.

Figures are as wide as one column of a paper. A table shows its first rows and columns. Figures and tables that need
other runs are listed with the reason.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from app.analysis.results import select_runs
from app.analysis.tables import Table
from app.figures.figure import FigureKind, TableKind
from app.figures.image_options import read_image_options
from app.figures.kinds.chart import Chart
from app.figures.mathtext import format_mathtext
from app.figures.registry import FIGURES, TABLES
from app.figures.render.export import export_figure
from app.figures.render.matplotlib_style import make_style
from app.jobs.launch import EXAMPLE_BUNDLE
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import Database, open_database
from storage.queries.episode_search import find_replayable_episodes
from storage.runs.rows import RunRow
from tests.report import BenchResult, add_json_option, make_result, run_and_report
from tests.tools.pictures import FOLDER as PICTURES
from tests.tools.pictures import MAX_TOTAL_KB, reduce_colors

FOLDER = PICTURES / "gallery"
PAGE = PICTURES.parent / "gallery.md"
WIDTH = "3.25in"
_SIZE = 0.42
"""Pixels of a picture per pixel of the exported image, which has 300 dpi."""
_N_ROWS, _MAX_CHARACTERS, _MAX_CELL = 5, 120, 32
"""Rows of a table in its picture, characters of a row, and characters of a cell."""
_BOLD_WIDTH = 1.15
"""Width of bold text relative to normal text."""
_INTRODUCTION = """# Gallery of figures and tables

All figures and tables that `emtc export` writes, drawn from the example study by
`python -m tests.tools.gallery` in a checkout.

For example, the picture of `learning-curves` is made by

```bash
emtc export --figure learning-curves --map {map} --set smooth=50000 --width {width} --no-title --out curves.pdf
```

`--font serif`, `--line-names legend` and `--label "EMTC(QPLEX)=Ours"` adapt a figure to a paper. The button *Export* of
the pages has the same options. A figure of one run needs its id, as in
`emtc export RUN --figure gate-dynamics --out gate.pdf`.
"""


class FigureInput(NamedTuple):
    """The runs of a figure in the gallery, and its options."""

    rows: Sequence[RunRow]
    options: Mapping[str, Any]


class GalleryItem(NamedTuple):
    """A figure or table in the gallery."""

    section: str
    """Its section on the page: "Figures" or "Tables"."""
    name: str
    text: str
    png: bytes
    """Its picture; empty if it needs other runs than those of the example study."""
    reason: str = ""
    """Why it has no picture."""

    @property
    def stem(self) -> str:
        """Name of the picture's file without its ending."""
        return f"{self.section.lower()}-{self.name}"


def run() -> list[BenchResult]:
    """Write the pictures and the page into the guide, and report the sizes."""
    with tempfile.TemporaryDirectory(prefix="emtc-gallery-") as folder:
        db = open_database(cache_bundle(EXAMPLE_BUNDLE, cache=Path(folder)).url, read_only=True)
        study = _find_study(db)
        map_name, items = study[0].map, list(draw_items(db, study))
        db.dispose()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.glob("*.png"):
        path.unlink()
    results = []
    for item in items:
        if item.png:
            (FOLDER / f"{item.stem}.png").write_bytes(item.png)
            results.append(make_result(f"gallery.{item.stem}", len(item.png) / 1000, "kB"))
    PAGE.write_text(write_page(items, map_name), encoding="utf-8")
    total = sum(path.stat().st_size for path in PICTURES.rglob("*.png")) / 1000
    return [*results, make_result("gallery.all", total, "kB", MAX_TOTAL_KB, "all pictures of the guide")]


def draw_items(db: Database, study: Sequence[RunRow]) -> Iterator[GalleryItem]:
    """Draw all figures and tables of the registry. `study` has the runs of the figures, tables have all runs."""
    all_rows = select_runs(db)
    run_of_memory = next(row for row in study if _has_gate(row) and find_replayable_episodes(db, row.id))
    inputs = _make_inputs(db, study, run_of_memory)
    for kind in FIGURES.values():
        default = [run_of_memory] if kind.needs_runs else study
        yield _make_figure_item(db, kind, inputs.get(kind.name, FigureInput(default, {})))
    for table in TABLES.values():
        yield _make_table_item(db, table, all_rows)


def write_page(items: Sequence[GalleryItem], map_name: str) -> str:
    """Write the page: a section each for figures and tables, and the list of those without a picture."""
    parts = [_INTRODUCTION.format(map=map_name, width=WIDTH)]
    for section in ("Figures", "Tables"):
        parts.append(f"## {section}\n")
        for item in items:
            if item.section == section and item.png:
                text = f"{item.text}\n\n" if item.text else ""
                link = f"![{item.name}](pictures/gallery/{item.stem}.png)"
                parts.append(f"### {item.name}\n\n{text}{link}\n")
    missing = [f"- `{item.name}` ({item.section.lower()}): {item.reason}" for item in items if not item.png]
    if missing:
        parts.append("## Not in the example study\n\n" + "\n".join(missing) + "\n")
    return "\n".join(parts)


def _find_study(db: Database) -> list[RunRow]:
    """Find the runs on the map of the example study with the most seeds."""
    rows = select_runs(db)
    seeds = {map_name: {row.seed for row in rows if row.map == map_name} for map_name in {row.map for row in rows}}
    largest = max(sorted(seeds), key=lambda map_name: len(seeds[map_name]))
    return [row for row in rows if row.map == largest]


def _has_gate(row: RunRow) -> bool:
    return row.algo.startswith("emtc-") and bool(row.config.get("gate", {}).get("enabled"))


def _make_inputs(db: Database, study: Sequence[RunRow], run: RunRow) -> dict[str, FigureInput]:
    """Choose runs and options for the figures that need more than the default runs."""
    episodes = find_replayable_episodes(db, run.id)
    emu = next(row for row in study if row.algo.startswith("emu-") and row.seed == run.seed)
    two = ",".join(map(str, reversed(episodes[:2])))
    pair = [{"episode": episode} for episode in episodes[:2]]
    smooth = {"smooth": 50_000}
    return {
        "learning-curves": FigureInput(study, smooth),
        "mu-w": FigureInput(study, smooth),
        "baselines": FigureInput(select_runs(db), {}),
        "embedding-comparison": FigureInput([run, emu], {"method": "pca"}),
        "strategy-divergence": FigureInput([run], {"episodes": two}),
        "memory-atlas": FigureInput([run], {"paths": episodes[0]}),
        "memory-selection": FigureInput([run], {"ranges": "h:5:30"}),
        "what-if": FigureInput([run], {"delta_factor": 20}),
        "trajectory": FigureInput([run], {"episode": episodes[0]}),
        "trajectories": FigureInput([run], {"pair": pair}),
    }


def _make_figure_item(db: Database, kind: FigureKind[Any, Any], figure_input: FigureInput) -> GalleryItem:
    image_options, _ = read_image_options({"width": WIDTH, "no_title": True})
    try:
        figure = kind.make(db, figure_input.rows, kind.read_options(figure_input.options))
        png = export_figure(figure, "png", options=image_options)
    except EmtcError as error:
        return GalleryItem("Figures", kind.name, kind.question, b"", _shorten(str(error).partition(". ")[0]) + ".")
    if isinstance(figure, Chart) and all(np.ptp(line.y[np.isfinite(line.y)]) == 0 for _, line in figure.panel_lines):
        return GalleryItem("Figures", kind.name, kind.question, b"", "each line is constant for the example run.")
    return GalleryItem("Figures", kind.name, kind.question, _reduce(png))


def _make_table_item(db: Database, kind: TableKind[Any, Any], rows: Sequence[RunRow]) -> GalleryItem:
    table = kind.make(db, rows)
    if not len(table):
        return GalleryItem("Tables", kind.name, "", b"", f"needs {kind.required_runs}.")
    return GalleryItem("Tables", kind.name, "", _reduce(draw_table(table)))


def draw_table(table: Table) -> bytes:
    """Draw the first rows and columns of a table as a PNG."""
    titles = [str(title) for title in table.frame.columns]
    texts = [[str(value) for value in row] for row in table.frame.head(_N_ROWS).itertuples(index=False, name=None)]
    columns = [[_shorten(text, _MAX_CELL) for text in column] for column in zip(titles, *texts, strict=True)]
    starts, position = [], 0
    for column in columns:
        starts.append(position)
        position += max(map(len, column)) + 2
    visible = [
        i for i, start in enumerate(starts) if start + _BOLD_WIDTH * max(map(len, columns[i])) <= _MAX_CHARACTERS
    ]
    with mpl.rc_context(make_style("light")):
        figure = Figure(figsize=(6.75, 0.17 * (len(texts) + 2)))
        for i in visible:
            for line, text in enumerate(columns[i]):
                y = 1 - (line + 0.8) / (len(texts) + 2)
                weight = "bold" if line == 0 or (line - 1, titles[i]) in table.best else "normal"
                figure.text(
                    0.01 + starts[i] / _MAX_CHARACTERS, y, format_mathtext(text), size=7, weight=weight, va="center"
                )
        rest = [f"{n} more {noun}{'s' if n > 1 else ''}" for n, noun in
                ((len(table) - len(texts), "row"), (len(titles) - len(visible), "column")) if n > 0]  # fmt: skip
        figure.text(0.01, 0.5 / (len(texts) + 2), ", ".join(rest), size=7, color="0.45", va="center")
        file = BytesIO()
        figure.savefig(file, format="png", dpi=300)
    return file.getvalue()


def _reduce(png: bytes) -> bytes:
    """Make a picture smaller, with 256 colors."""
    with Image.open(BytesIO(png)) as image:
        size = (round(image.width * _SIZE), round(image.height * _SIZE))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    file = BytesIO()
    small.save(file, "PNG")
    return reduce_colors(file.getvalue())


def _shorten(text: str, width: int = 150) -> str:
    return shorten(text, width, placeholder=" …") if len(text) > width else text


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, make the gallery and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.gallery", description=__doc__)
    add_json_option(parser)
    options = parser.parse_args(arguments)
    return run_and_report("gallery", run, json=options.json)


if __name__ == "__main__":
    sys.exit(main())
