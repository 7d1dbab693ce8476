"""LaTeX code of tables. If TeX is installed, all tables are compiled and the text of the PDF is compared with CSV.

The tables are compiled on pages of 150 by 100 inches, where none is scaled and no text is wrapped, and again in a text
of 6.75 inches, where none may be scaled to less than 7 pt.
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

from app.analysis.latex import escape_text, find_layout
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
DOCUMENT = r"""\documentclass{article}
\usepackage{array,booktabs,graphicx,siunitx}
\paperwidth=150in \paperheight=100in \textwidth=146in \textheight=96in \oddsidemargin=0pt \topmargin=0pt
\begin{document}\pagestyle{empty}
%s
\end{document}
"""
TEXT_WIDTH = 6.75
NARROW_DOCUMENT = r"""\documentclass{article}
\usepackage{array,booktabs,graphicx,siunitx,times}
\textwidth=6.75in \oddsidemargin=0pt \topmargin=0pt
\makeatletter
\renewcommand{\resizebox}[3]{\setbox0\hbox{#3}\typeout{font \f@size\space width \the\wd0}\box0}
\makeatother
\begin{document}
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
        ("3–5 of 12,000", "$3$ to $5$ of 12,000"),
        ("2026-01-01, 3s5z-2", "2026-01-01, 3s5z-2"),
        ("–", "--"),
        ("naïve", "naïve"),
        ("地图", r"\texttt{U+5730}\texttt{U+56FE}"),
    ],
)
def test_text_is_written_with_numbers_in_math_mode(text: str, code: str) -> None:
    assert escape_text(text) == code


def test_a_row_never_starts_with_the_argument_of_a_line_break() -> None:
    code = export_table(make_table(["name"], [["a"], ["[2] b"], ["*c"]]), "latex").decode()
    assert r"{[}2] b \\" in code
    assert r"{*}c \\" in code


def test_headers_of_a_group_span_its_columns() -> None:
    columns = ["variant", Column("difference", unit="%"), Column("ours", group="3m"), Column("paper", group="3m")]
    lines = export_table(make_table(columns, [["a", "1", "2", "3"]]), "latex").decode().splitlines()
    number = "S[table-format=1]"
    assert lines[:6] == [
        r"% \usepackage{booktabs,siunitx}",
        rf"\begin{{tabular}}{{l{number * 3}}}",
        r"\toprule",
        r" &  & \multicolumn{2}{c}{3m} \\",
        r"\cmidrule(lr){3-4}",
        r"variant & {difference [\%]} & {ours} & {paper} \\",
    ]


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


def test_only_a_wide_table_gets_a_smaller_font() -> None:
    narrow, wide = (export_table(make_table(list("abcd"), [["x" * n] * 4]), "latex").decode() for n in (10, 25))
    assert "resizebox" not in narrow
    assert wide.startswith(r"% \usepackage{booktabs,graphicx}")
    assert r"\footnotesize" in wide
    assert r"\end{tabular}}" in wide


def test_repeated_texts_of_a_wide_table_are_lines_above_their_rows() -> None:
    rows = [[task, f"method {i}", "word " * 40, i] for task in ("3m", "2s3z") for i in range(3)]
    layout = find_layout([("", "task"), ("", "method"), ("", "text"), ("", "n")], [list(map(str, row)) for row in rows])
    assert layout.headings == 1
    assert layout.wrapped == {2}
    lines = export_table(make_table(["task", "method", "text", "n"], rows), "latex").decode().splitlines()
    assert [line for line in lines if "itshape" in line] == [
        r"\multicolumn{3}{l}{\itshape 3m} \\",
        r"\multicolumn{3}{l}{\itshape 2s3z} \\",
    ]


def test_a_table_with_too_many_columns_is_split_into_panels_that_repeat_the_names_of_the_rows() -> None:
    headers = [("", "variant"), ("", "seed"), *(("", f"measure number {i}") for i in range(20))]
    layout = find_layout(headers, [[f"EMTC {i}", "1", *["0.12345"] * 20] for i in range(3)], n_keys=2)
    assert len(layout.panels) == 2
    assert all(panel[:2] == (0, 1) for panel in layout.panels)
    assert sorted(i for panel in layout.panels for i in panel[2:]) == list(range(2, 22))


def test_a_long_table_is_split_between_two_headings_because_a_tabular_cannot_break_across_pages() -> None:
    rows = [[f"task {i // 20}", f"{i:.4f}", *["word " * 6] * 6] for i in range(100)]
    code = export_table(make_table(list("abcdefgh"), rows), "latex").decode()
    first_lines = [part.splitlines()[4] for part in code.split(r"\begin{tabular}")[1:]]
    assert first_lines == [rf"\multicolumn{{7}}{{l}}{{\itshape task {i}}} \\" for i in range(5)]


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


def compile_tables(tables: Sequence[Table], folder: Path) -> list[str]:
    """Return the text of the PDF's page of each table."""
    pages = "\\clearpage\n".join(f"\\mbox{{}}\n{export_table(table, 'latex').decode()}" for table in tables)
    (folder / "tables.tex").write_text(DOCUMENT % pages, encoding="utf-8")
    command = ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert result.returncode == 0, result.stdout[-3000:]
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


def list_csv_numbers(table: Table) -> list[list[str]]:
    """List the numbers of the table's CSV file for each tabular environment.

    The columns that repeat the numbers of formatted cells are left out, and the texts that repeat in lines above rows.
    """
    titles = [str(title) for title in table.frame]
    code = export_table(table, "csv").decode()
    rows = csv.DictReader(io.StringIO(code, newline=""))
    texts = [[row[title] for title in titles] for row in rows]
    layout = find_layout([("", column.name) for column in table.columns], texts, n_keys=table.n_keys)
    panels = []
    for columns in layout.panels:
        cells, previous = [], [""] * layout.headings
        for row in texts:
            headings = row[: layout.headings]
            changed = next((i for i in range(layout.headings) if headings[i] != previous[i]), layout.headings)
            cells += [*headings[changed:], *(row[i] for i in columns)]
            previous = headings
        panels.append([number for text in cells for number in list_numbers(text)])
    return panels


def compare_with_pdf(tables: Mapping[str, Table], folder: Path) -> None:
    for (name, table), page in zip(tables.items(), compile_tables(list(tables.values()), folder), strict=True):
        numbers = list_numbers(page)
        for expected in reversed(list_csv_numbers(table)):
            n = len(expected)
            start = next((i for i in range(len(numbers) - n, -1, -1) if numbers[i : i + n] == expected), None)
            assert start is not None, name
            numbers = numbers[:start]


def compile_in_text_width(tables: Mapping[str, Table], folder: Path) -> dict[str, float]:
    """Compile the tables in a text of 6.75 inches, and return the font size of each wide table [pt]."""
    code = "".join(
        f"\\typeout{{table {name}}}\n{export_table(table, 'latex').decode()}\\clearpage\n"
        for name, table in tables.items()
    )
    (folder / "narrow.tex").write_text(NARROW_DOCUMENT % code, encoding="utf-8")
    command = ["pdflatex", "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "narrow.tex"]
    log = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace").stdout
    sizes: dict[str, float] = {}
    for part in log.split("table ")[1:]:
        name = part.split()[0]
        for size, width in re.findall(r"font (\S+) width ([\d.]+)pt", part):
            sizes[name] = min(sizes.get(name, 99), float(size) * min(1, TEXT_WIDTH * 72.27 / float(width)))
    return sizes


@pytest.mark.parametrize(
    "study", ["confirmatory-study", pytest.param("first-study", marks=pytest.mark.ci)]
)  # the first study has more runs and takes 20 s
def test_the_pdf_of_every_table_has_the_numbers_of_its_csv_file(study: str, made_up: Database, tmp_path: Path) -> None:
    require_latex()
    bundle = cache_bundle(ROOT / "app" / "guide" / f"{study}.emtc", cache=tmp_path / "study")
    db = open_database(bundle.url, read_only=True)
    tables = make_tables(db)
    db.dispose()
    sizes = compile_in_text_width(tables, tmp_path)
    assert "study-measures" in sizes
    assert {name: size for name, size in sizes.items() if size < 7} == {}
    tables |= {f"made up: {name}": table for name, table in make_tables(made_up).items()}
    tables["what-if"] = TABLES["what-if"].make(made_up, [find_run(made_up, seed_run(made_up, name=HOSTILE))])
    assert {name.removeprefix("made up: ") for name in tables} == set(TABLES)
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
