"""The Method page: texts, equations, settings, presets, metrics, measurements and the check of both propositions."""

import csv
import re
from importlib.resources import files

import pytest
from streamlit.testing.v1 import AppTest

from app.analysis.bootstrap import BOOTSTRAP_COVERAGE
from app.analysis.format import escape_markdown, format_number
from app.ui.method.options import compare_presets, explain_preset, find_labels
from app.ui.method.published import find_published_configuration
from app.ui.method.text import TEXTS, read_measurements
from emtc_core.config.resolve import describe_fields
from emtc_core.metrics import METRICS
from tests.bench.embedding import TASKS
from tests.pages.test_pages import open_page, said

PRESETS = ("emu_index", "prewrite", "literal_raw", "wide", "emu_code", "cds_code")


@pytest.fixture
def method(empty) -> AppTest:
    app = open_page("method")
    assert not app.exception
    assert not app.error
    return app


def test_page_lists_every_setting_with_its_description(method):
    text = said(method)
    missing = [info.key for info in describe_fields() if f"| `{info.key}` |" not in text]
    assert missing == []


def test_page_lists_every_metric(method):
    text = said(method)
    assert [name for name in METRICS if f"| `{name}` |" not in text] == []


def test_every_row_of_a_table_has_as_many_cells_as_its_head(method):
    for element in method.markdown:
        rows = [line for line in str(element.value).splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1, rows[:3]


@pytest.mark.parametrize("name", sorted(file.stem for file in TEXTS.glob("*.md")))
def test_page_shows_every_text(method, name):
    text = said(method)
    written = (TEXTS / f"{name}.md").read_text(encoding="utf-8")
    parts = [part.strip() for part in re.split(r"^<!-- .+ -->$", written, flags=re.MULTILINE)]
    assert parts
    assert [part[:80] for part in parts if part not in text] == []
    assert "<!--" not in text


def test_equations_are_numbered_from_one_to_twelve(method):
    assert re.findall(r"\\qquad \((\d+)\)\n", said(method)) == [str(number) for number in range(1, 13)]


def test_settings_list_the_open_questions_they_answer():
    labels = {info.key: find_labels(info) for info in describe_fields()}
    assert labels["memory.delta_space"] == "A10"
    assert labels["incentive.clamp"] == "C9"
    assert labels["embed.type"] == "B13, B14"
    assert labels["train.gamma"] == ""


def test_search_narrows_the_settings(method):
    method.text_input(key="method?find").set_value("C9").run()
    text = said(method)
    assert "| `incentive.clamp` |" in text
    assert "| `mappo.epochs` |" not in text


def test_a_search_without_a_result_is_reported(method):
    method.text_input(key="method?find").set_value("<b>nothing</b>").run()
    assert "No setting contains" in said(method)
    assert not method.exception


def test_presets_differ_where_they_should(method):
    rows = {row[0]: row[1:] for row in compare_presets("emtc-qplex", "skirmish", "corridor", ["emu_code"])}
    assert rows["`incentive.clamp`"] == ("`none`", "`positive` (emu\\_code)", "C9", rows["`incentive.clamp`"][3])
    assert "negative" in rows["`incentive.clamp`"][3]
    assert "`preset`" not in rows


def test_every_preset_is_compared_with_paper_and_has_reasons(method):
    text = said(method)
    rows = compare_presets("emtc-qplex", "skirmish", "corridor", PRESETS)
    assert [row[0] for row in rows if f"| {row[0]} |" not in text] == []
    assert f"{len(rows)} of {len(describe_fields())} settings differ" in text
    for name in PRESETS:
        assert f"##### {name}\n" in text
        reasons = explain_preset(name, "emtc-qplex", "skirmish", "corridor")
        assert all(f"| {sets} | {why} |" in text for sets, why in reasons)
    assert "No change for emtc\\-qplex on skirmish corridor" in text  # cds_code


def test_a_preset_shows_its_values_and_reasons(method):
    method.pills(key="method?presets").set_value(["prewrite"]).run()
    assert not method.exception
    text = said(method)
    table = next(str(e.value) for e in method.markdown if str(e.value).startswith("| Key | paper |"))
    assert table.splitlines()[0] == "| Key | paper | Other values (presets) | Question | Meaning |"
    assert "| `gate.timing` | `after_write` | `before_write` (prewrite) | C19 |" in table
    assert "`gate.timing = before_write`, `gate.on_miss = nearest`" in text
    assert "the gate reads only other episodes" in text
    assert "##### emu_index" not in text


def test_rules_of_cds_code_apply_to_cds_on_football_only():
    assert explain_preset("cds_code", "emtc-qplex", "grf", "academy_3_vs_1_with_keeper") == []
    reasons = explain_preset("cds_code", "cds", "grf", "academy_3_vs_1_with_keeper")
    assert "`cds.mixer = qmix`" in reasons[0][0]
    assert "train.t_max = 4050000" in reasons[1][0]


def test_a_baseline_shows_what_differs_from_its_published_configuration_and_why(empty):
    app = open_page("method", part="Presets", algo="emu-qplex")
    assert not app.exception
    text = said(app)
    comparison = find_published_configuration("emu-qplex", "skirmish", "corridor")
    assert comparison is not None
    assert len(comparison.differences) > 10
    assert all(f"| {' | '.join(row)} |" in text for row in comparison.differences)
    assert "HyunghoNa/EMU at 107ff71" in text


def test_an_algorithm_without_published_code_is_reported(method):
    assert "No configuration of emtc\\-qplex on corridor is published in code." in said(method)


def test_no_preset_to_compare_is_an_empty_comparison(method):
    method.pills(key="method?presets").set_value([]).run()
    assert not method.exception
    assert "0 of" in said(method)


def test_the_numerical_check_shows_both_figures_without_sliders(method):
    text = said(method)
    assert escape_markdown("100.0 % of the points lie within ±α of the diagonal") in text
    assert escape_markdown("Relative distance at H = V*") in text
    assert list(method.slider) == []


def test_hostile_url_parameters_are_harmless(empty):
    app = open_page("method", part="<script>", algo="evil", task="1e99", find="|", presets="nan")
    assert not app.exception
    assert not app.error


def test_page_shows_the_measurements_of_the_gate_variants(method):
    text = said(method)
    for name, n_rows in (("gate-shapes.csv", 10), ("gate-variants.csv", 14)):
        rows = list(csv.reader((files("app") / "guide" / "measured" / name).read_text().splitlines()))
        assert len(rows) == 1 + n_rows
        assert all(" | ".join(map(escape_markdown, row)) in text for row in rows), name


def test_page_shows_the_measurements_of_the_return_scale(method):
    measured = read_measurements("embedding.json")
    tasks = {map for _, map, _ in measured}
    assert set(tasks) == {map for _, map in TASKS}
    text = said(method)
    for (what, map, scale), value in measured.items():
        assert format_number(value) in text, (what, map, scale)


def test_page_shows_the_measured_coverage_of_each_interval(method):
    text = said(method)
    for (what, data, n), value in read_measurements("coverage.json").items():
        assert f"{value:.1f}" in text, (what, data, n)
    assert BOOTSTRAP_COVERAGE in " ".join(text.split())
