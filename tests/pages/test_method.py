"""The Method page: texts, equations, settings, presets, metrics, measurements and the check of both propositions."""

import csv
import re
from importlib.resources import files

import pytest
from streamlit.testing.v1 import AppTest

from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.analysis.format import escape_markdown, format_number
from app.ui.method.options import compare_presets, explain_preset
from app.ui.method.published import find_published_configuration
from app.ui.method.text import TEXTS, read_measurements
from emtc_core.config.resolve import describe_fields
from emtc_core.metrics import METRICS
from tests.bench.embedding import TASKS
from tests.pages.test_pages import open_page, said

PRESETS = ("emu_index", "prewrite", "literal_raw", "wide", "emu_code", "cds_code")
TASK = ("emtc-qplex", "skirmish", "corridor")


@pytest.fixture
def method(empty) -> AppTest:
    app = open_page("method")
    assert not app.exception
    assert not app.error
    return app


def read_parts_of_texts() -> list[str]:
    """Read the start of each part of the texts, without the names of tables and figures."""
    parts = []
    for file in sorted(TEXTS.glob("*.md")):
        found = re.split(r"^<!-- .+ -->$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        parts += [part.strip()[:80] for part in found]
    return parts


def read_rows(name: str) -> list[str]:
    """Read the rows of a table of measurements as the page writes them."""
    rows = csv.reader((files("app") / "guide" / "measured" / name).read_text(encoding="utf-8").splitlines())
    return [" | ".join(map(escape_markdown, row)) for row in rows]


def test_the_page_contains_every_setting_metric_preset_text_and_measurement(method):
    compared = compare_presets(*TASK, PRESETS)
    reasons = [f"| {sets} | {why} |" for name in PRESETS for sets, why in explain_preset(name, *TASK)]
    assert {task for _, task, _ in read_measurements("embedding.json")} == {task for _, task in TASKS}
    expected = {
        "settings": [f"| `{info.key}` |" for info in describe_fields()],
        "metrics": [f"| `{name}` |" for name in METRICS],
        "presets": [*(f"##### {name}\n" for name in PRESETS), *(f"| {row[0]} |" for row in compared), *reasons],
        "texts": read_parts_of_texts(),
        "equations": [f"\\qquad ({number})\n" for number in range(1, 13)],
        "gate": [*read_rows("gate-shapes.csv"), *read_rows("gate-variants.csv")],
        "return scale": [format_number(value) for value in read_measurements("embedding.json").values()],
        "coverage": [f"{value:.1f}" for value in read_measurements("coverage.json").values()],
        "propositions": [
            escape_markdown("100.0 % of the points lie within ±α of the diagonal"),
            escape_markdown("Relative distance at H = V*"),
        ],
    }
    assert all(expected.values())
    text = said(method)
    assert {kind: [part for part in parts if part not in text] for kind, parts in expected.items()} == {
        kind: [] for kind in expected
    }
    assert "<!--" not in text
    assert BOOTSTRAP_COVERAGE in " ".join(text.split())


def test_every_row_of_a_table_has_as_many_cells_as_its_head(method):
    for element in method.markdown:
        rows = [line for line in str(element.value).splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1, rows[:3]


def test_a_search_narrows_the_settings(method):
    method.text_input(key="method?find").set_value("B13").run()
    text = said(method)
    assert re.search(r"^\| `embed\.type` \|.*\| B13, B14 \|", text, re.MULTILINE)
    assert "| `mappo.epochs` |" not in text
    method.text_input(key="method?find").set_value("<b>nothing</b>").run()
    assert not method.exception
    assert "No setting contains" in said(method)


def test_a_preset_shows_where_it_differs_from_paper_and_why(method):
    assert "No change for emtc\\-qplex on skirmish corridor" in said(method)  # the rules of cds_code
    method.pills(key="method?presets").set_value(["prewrite"]).run()
    assert not method.exception
    text = said(method)
    table = next(str(e.value) for e in method.markdown if str(e.value).startswith("| Key | paper |"))
    assert "| `gate.timing` | `after_write` | `before_write` (prewrite) | C19 |" in table
    assert "| `preset` |" not in table
    assert "`gate.timing = before_write`, `gate.on_miss = nearest`" in text
    assert "the gate reads only other episodes" in text
    assert "##### emu_index" not in text
    method.pills(key="method?presets").set_value([]).run()
    assert not method.exception
    assert f"0 of {len(describe_fields())} settings differ" in said(method)


def test_a_preset_has_the_rules_of_the_algorithm_and_the_environment():
    assert explain_preset("cds_code", "emtc-qplex", "grf", "academy_3_vs_1_with_keeper") == []
    reasons = explain_preset("cds_code", "cds", "grf", "academy_3_vs_1_with_keeper")
    assert "`cds.mixer = qmix`" in reasons[0][0]
    assert "train.t_max = 4050000" in reasons[1][0]


def test_a_baseline_shows_what_differs_from_its_published_configuration_and_why(method):
    assert "No configuration of emtc\\-qplex on corridor is published in code." in said(method)
    method.selectbox(key="method?algo").set_value("emu-qplex").run()
    assert not method.exception
    text = said(method)
    comparison = find_published_configuration("emu-qplex", "skirmish", "corridor")
    assert comparison is not None
    assert len(comparison.differences) > 10
    assert all(f"| {' | '.join(row)} |" in text for row in comparison.differences)
    assert "HyunghoNa/EMU at 107ff71" in text


def test_hostile_url_parameters_are_harmless(empty):
    app = open_page("method", part="<script>", algo="evil", task="1e99", find="|", presets="nan")
    assert not app.exception
    assert not app.error
