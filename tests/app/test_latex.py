"""LaTeX code of tables. No TeX is installed here, so the code is checked by rules instead of being compiled."""

import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from app.analysis.aggregates import Aggregation
from app.analysis.comparable import select_runs
from app.analysis.latex import escape_text
from app.analysis.tables import Column, Table, export_table, make_plain_table, make_table
from app.analysis.win_rates import tabulate_mu_w
from app.figures.registry import TABLES
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import Database, open_database
from tests.app.test_tables import NASTY, seeds  # noqa: F401  # a fixture

ROOT = Path(__file__).parents[2]
NUMBER = r"[-+]?\d+(?:\.\d+)?"
BROKEN = {
    "a dash between numbers": rf"{NUMBER}\$?-{{2,}}\$?{NUMBER}",
    "a minus in text mode": r"(?<![\w$\\{-])-\d",
    "an empty formula": r"(?<!\\)\$\$",
    "an unescaped character": r"(?<!\\)[#%]",
}


def find_faults(code: str) -> list[str]:
    """List the reasons why pdfTeX cannot compile the code or prints something else than the table contains."""
    lines = [line for line in code.splitlines() if not line.startswith("%")]
    text = "\n".join(lines)
    faults = [f"{name}: {match[0]!r}" for name, rule in BROKEN.items() if (match := re.search(rule, text))]
    faults += [f"not in ASCII: {character!r}" for character in set(text) if not character.isascii()]
    if len(re.findall(r"(?<!\\)\$", text)) % 2:
        faults.append("math mode is not closed")
    for line in lines:
        bare = re.sub(r"\\.", "", line)
        if bare.count("{") != bare.count("}"):
            faults.append(f"braces are not balanced: {line}")
        if any(len(formula.strip()) == 0 for formula in re.split(r"(?<!\\)\$", line)[1::2]):
            faults.append(f"an empty formula: {line}")
        outside_formulas = "".join(re.split(r"(?<!\\)\$", line)[::2])
        if re.search(r"(?<!\\)[\^_]|\\(?:bar|Delta|beta|pm|times)\b", outside_formulas):
            faults.append(f"a symbol of math mode in text mode: {line}")
    widths = {len(re.split(r"(?<!\\)&", line)) for line in lines if line.endswith(r"\\") and "multicolumn" not in line}
    return faults + ([f"rows have {sorted(widths)} cells"] if len(widths) > 1 else [])


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


def test_the_rules_find_the_code_of_earlier_versions() -> None:
    for code in ("[-5.03---1.48]", "a − b", r"x \& $\mu$_w", "-1.4", r"$\beta"):
        assert find_faults(rf"{code} & 1 \\"), code


def test_a_row_never_starts_with_the_argument_of_a_line_break() -> None:
    code = export_table(make_table(["name"], [["a"], ["[2] b"], ["*c"]]), "latex").decode()
    assert r"{[}2] b \\" in code
    assert r"{*}c \\" in code


def test_headers_of_a_group_span_its_columns() -> None:
    columns = ["variant", Column("difference", unit="%"), Column("ours", group="3m"), Column("paper", group="3m")]
    lines = export_table(make_table(columns, [["a", "1", "2", "3"]]), "latex").decode().splitlines()
    assert lines[2:5] == [
        r" &  & \multicolumn{2}{c}{3m} \\",
        r"\cmidrule(lr){3-4}",
        r"variant & difference [\%] & ours & paper \\",
    ]


def test_hostile_names_and_made_up_tables_can_be_compiled(seeds) -> None:  # noqa: F811
    from app.analysis.series import join_seeds

    tables: list[Table] = [
        make_plain_table(pd.DataFrame({NASTY: [NASTY, None], "x": [-1.5, 2e-7]})),
        tabulate_mu_w(join_seeds(seeds, include_unfinished=True), {"3m": [100, 400]}, Aggregation("mean", "ci")),
    ]
    assert [find_faults(export_table(table, "latex").decode()) for table in tables] == [[], []]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The example study."""
    bundle = cache_bundle(ROOT / "app" / "guide" / "first-study.emtc", cache=tmp_path_factory.mktemp("study"))
    db = open_database(bundle.url, read_only=True)
    yield db
    db.dispose()


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_the_example_study_can_be_compiled(study: Database, name: str) -> None:
    table = TABLES[name].make(study, select_runs(study))
    assert find_faults(export_table(table, "latex").decode()) == []
