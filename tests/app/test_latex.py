"""LaTeX code of tables. If TeX is installed, all tables are compiled and the text of the PDF is compared with CSV.

The pages are 150 by 100 inches, so that no table is scaled.
"""

import csv
import io
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest

from app.analysis.latex import escape_text
from app.analysis.results import select_runs
from app.analysis.tables import Column, Table, export_table, make_plain_table, make_table
from app.figures.registry import TABLES
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import Database, open_database
from storage.runs.rows import find_run
from tests.app.sweep_cases import AUGMENTATION, DELTA, seed_sweep
from tests.app.test_tables import NASTY
from tests.pages.seed import seed_run
from tests.require import require_latex

ROOT = Path(__file__).parents[2]
HOSTILE = f"{NASTY} −5 Ω 100 % [2] x² µ φ ≠ é"
TABLES_OF_STUDIES = {"published", "comparisons-by-rate", "claims"}
"""They have no rows for runs of other studies."""
DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs,graphicx,siunitx}
\paperwidth=150in \paperheight=100in \textwidth=146in \textheight=96in \oddsidemargin=0pt \topmargin=0pt
\begin{document}\pagestyle{empty}
%s
\end{document}
"""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("-5.03 [-6.1–-1.48]", "$-5.03$ [$-6.1$, $-1.48$]"),
        ("+0.14 [-0.23, +0.51]", "$+0.14$ [$-0.23$, $+0.51$]"),
        ("97.5 ± 1.0 (n = 3)", r"97.5 $\pm$ 1.0 (n = 3)"),
        ("seed −2", "seed $-2$"),
        ("EMTC − No-TCGM", "EMTC $-$ No-TCGM"),
        ("robust μ̄_w", r"robust $\bar{\mu}_{w}$"),
        ("Δ̄_mem", r"$\bar{\Delta}_{\mathrm{mem}}$"),
        ("β̄ < 0.5 [%]", r"$\bar{\beta}$ \textless{} 0.5 [\%]"),
        ("η_lr, ς_x", r"$\eta_{\mathrm{lr}}$, \texttt{U+03C2}\_x"),
        ("λ_rcon = 5e-05", r"$\lambda_{\mathrm{rcon}}$ = $5 \times 10^{-5}$"),
        ("3–5 of 12,000", "3--5 of 12,000"),
        ("-2–-1", "$-2$--$-1$"),
        ("2026-01-01, 3s5z-2", "2026-01-01, 3s5z-2"),
        ("–", "--"),
        ("naïve", "naïve"),
        ("地图", r"\texttt{U+5730}\texttt{U+56FE}"),
    ],
)
def test_text_is_written_with_numbers_in_math_mode(text: str, code: str) -> None:
    assert escape_text(text) == code


def test_headers_of_a_group_span_its_columns() -> None:
    columns = ["variant", Column("difference", unit="%"), Column("ours", group="3m"), Column("paper", group="3m")]
    lines = export_table(make_table(columns, [["[2] a", "1", "2", "3"]]), "latex").decode().splitlines()
    number = "S[table-format=1]"
    assert [lines[0], *lines[2:7]] == [
        r"% \usepackage{booktabs,graphicx,siunitx}",
        rf"\begin{{tabular}}{{l{number * 3}}}",
        r"\toprule",
        r" &  & \multicolumn{2}{c}{3m} \\",
        r"\cmidrule(lr){3-4}",
        r"variant & {difference [\%]} & {ours} & {paper} \\",
    ]
    assert lines[8].startswith("{[}2] a"), "a bracket after a line break would be its argument"


@pytest.mark.parametrize(
    ("texts", "column"),
    [
        (["1", "12"], "S[table-format=2]"),
        (["-1.5", "0.25", "–"], "S[table-format=-1.2]"),
        (["+1.5", "−10"], "S[table-format=+2.1,retain-explicit-plus=true]"),
        (["1000080", "7"], "S[table-format=7,group-minimum-digits=8]"),
        (["1.0 ± 0.1", "2"], "l"),
        (["1e-05", "2"], "l"),
        (["–"], "l"),
    ],
)
def test_a_column_of_plain_numbers_is_aligned_at_the_decimal_point(texts: list[str], column: str) -> None:
    code = export_table(make_table(["x"], [[text] for text in texts]), "latex").decode()
    assert rf"\begin{{tabular}}{{{column}}}" in code


def test_a_wide_table_is_scaled_to_the_width_of_the_text(tmp_path: Path) -> None:
    require_latex()
    for n_columns, is_scaled in ((3, False), (30, True)):
        table = make_table([f"column {i}" for i in range(n_columns)], [["text"] * n_columns])
        measure = "\\setbox0\\hbox{%s}\\typeout{width \\the\\wd0, text \\the\\linewidth}"
        document = DOCUMENT.replace(r"\textwidth=146in", r"\textwidth=6in")
        log = compile_document(document % (measure % export_table(table, "latex").decode()), tmp_path)
        width, text_width = re.findall(r"width ([\d.]+)pt, text ([\d.]+)pt", log)[0]
        assert (abs(float(width) - float(text_width)) < 0.1) is is_scaled


@pytest.fixture
def made_up(tmp_path: Path, sqlite_template: Path) -> Iterator[Database]:
    """Two sweeps whose names have special characters."""
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    name = HOSTILE.replace("\\", "\\\\")
    for sweep in (AUGMENTATION, DELTA):
        seed_sweep(db, re.sub('name = "[NR].*"', lambda _: f'name = "{name}"', sweep))
    yield db
    db.dispose()


def make_tables(db: Database) -> dict[str, Table]:
    tables = {name: kind.make(db, select_runs(db)) for name, kind in TABLES.items()}
    return {name: table for name, table in tables.items() if len(table)}


def compile_document(document: str, folder: Path) -> str:
    """Make a PDF file of a document, and return the log."""
    (folder / "tables.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert result.returncode == 0, result.stdout[-3000:]
    return result.stdout


def compile_tables(tables: Sequence[Table], folder: Path) -> list[str]:
    """Return the text of the PDF's page of each table."""
    pages = "\\clearpage\n".join(f"\\mbox{{}}\n{export_table(table, 'latex').decode()}" for table in tables)
    compile_document(DOCUMENT % pages, folder)
    read = subprocess.run(["pdftotext", "-raw", "tables.pdf", "-"], cwd=folder, capture_output=True, check=True)
    pages = read.stdout.decode().split("\f")[:-1]
    assert len(pages) == len(tables)
    return pages


def list_numbers(text: str) -> list[str]:
    """List the numbers with their signs. Powers of ten are written as 5e-7, and dashes between numbers are no minus."""
    text = re.sub(r"[–—]", " ", text.replace("−", "-"))
    text = re.sub(r"\s*×\s*10\s*(-?\d+)", r"e\1", unicodedata.normalize("NFKC", text))
    return [re.sub(r"e([+-]?)0*", r"e\1", number).replace("e+", "e")
            for number in re.findall(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", text)]  # fmt: skip


def list_csv_numbers(table: Table) -> list[str]:
    """List the numbers of the table's CSV file, without the columns that repeat the numbers of formatted cells."""
    titles = [str(title) for title in table.frame]
    code = export_table(table, "csv").decode()
    rows = csv.DictReader(io.StringIO(code, newline=""))
    return [number for row in rows for title in titles for number in list_numbers(row[title])]


def compare_with_pdf(tables: Mapping[str, Table], folder: Path) -> None:
    for (name, table), page in zip(tables.items(), compile_tables(list(tables.values()), folder), strict=True):
        expected = list_csv_numbers(table)
        numbers = list_numbers(page)
        assert numbers[len(numbers) - len(expected) :] == expected, name


@pytest.mark.ci
def test_the_pdf_of_every_table_of_a_study_has_the_numbers_of_its_csv_file(tmp_path: Path) -> None:
    require_latex()
    bundle = cache_bundle(ROOT / "app" / "guide" / "confirmatory-study.emtc", cache=tmp_path / "study")
    db = open_database(bundle.url, read_only=True)
    tables = make_tables(db)
    db.dispose()
    assert tables.keys() >= TABLES_OF_STUDIES
    compare_with_pdf(tables, tmp_path)


def test_the_pdf_of_a_table_with_special_characters_has_the_numbers_of_its_csv_file(
    made_up: Database, tmp_path: Path
) -> None:
    require_latex()
    tables = make_tables(made_up)
    tables["what-if"] = TABLES["what-if"].make(made_up, [find_run(made_up, seed_run(made_up, name=HOSTILE))])
    assert tables.keys() | TABLES_OF_STUDIES == TABLES.keys()
    tables["plain"] = make_plain_table(pd.DataFrame({HOSTILE: [HOSTILE, None], "x": [-1.5, 2e-7]}))
    tables["numbers"] = make_table(
        ["int", "signed", "long", "power", "best", "missing", "word"],
        [
            [1, "+0.50", 1000080, 2e-7, "-1.5", "–", "nan"],
            [12, "−12.25", 7, -1.5, "2", "−", "1"],
            [3, "–", 12345678, 0.25, "–", None, "2"],
        ],
        best=[(0, "best")],
    )
    compare_with_pdf(tables, tmp_path)
