"""SQL: queries are read-only, the tables are described, and a failed query shows one error."""

import json

import pytest

from storage.queries.runs import list_runs
from storage.sql.glossary import EXAMPLES
from tests.pages.test_pages import open_page, said


def run_query(app, query):
    app.text_area(key="sql?q").set_value(query)
    app.button(key="run_query").click().run()
    assert not app.exception
    return app


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_result_has_links_to_runs_and_is_shown_until_the_next_query(seeded, use_database, monkeypatch, is_read_only):
    if is_read_only:
        monkeypatch.setenv("EMTC_READ_ONLY", "1")
        use_database(seeded[0].path)
    app = run_query(open_page("sql"), "select id, name, win_rate from runs")
    assert not app.error
    assert "1 row\\." in said(app)
    (row,) = app.dataframe[1].value.to_dict("records")
    assert (row["name"], row["win_rate"]) == ("Seeded run", 0.5)
    assert row["id"].startswith("run?")
    assert row["id"].endswith(f"run={seeded[1]}")
    app.selectbox(key="sql?table").set_value("metrics").run()
    assert app.dataframe[0].value["Column"].tolist() == ["run_id", "env_step", "name", "value"]
    assert len(app.dataframe) == 2
    app = run_query(app, "select run_id, id from snapshots")
    assert app.dataframe[1].value["run_id"].str.endswith(f"run={seeded[1]}").all()
    assert app.dataframe[1].value["id"].tolist() == [1, 2], "not ids of runs"
    app = run_query(app, "select * from runs where false")
    assert len(app.dataframe) == 1
    assert "returned no rows" in said(app)


def test_small_numbers_keep_their_significant_digits(seeded):
    """Streamlit shows numbers without a format with four digits after the point, 1.8e-05 as 0.00002."""
    app = run_query(open_page("sql"), "select 1.8e-05 as a, 1.23e-7 as b, 7 as n, null as missing, 'x' as text")
    columns = json.loads(app.dataframe[1].proto.columns)
    formats = {name: columns[name]["type_config"]["format"] for name in ("a", "b")}
    assert {f"{value:{format[1:]}}" for value, format in zip((1.8e-05, 1.23e-7), formats.values(), strict=True)} == {
        "1.8e-05",
        "1.23e-07",
    }
    assert not {"n", "missing", "text"} & columns.keys()


def test_a_result_beyond_the_row_limit_is_marked_as_truncated(seeded):
    app = open_page("sql")
    app.selectbox(key="sql?rows").set_value(100)
    run_query(app, "select * from transitions")
    assert "The first 100 rows; there are more" in said(app)


def test_a_link_and_an_example_insert_a_query_that_runs_only_when_the_button_is_pressed(seeded):
    app = open_page("sql", q="select 1 as one")
    assert app.text_area(key="sql?q").value == "select 1 as one"
    assert len(app.dataframe) == 1
    name = next(iter(EXAMPLES))
    app.selectbox(key="example").set_value(name).run()
    assert app.text_area(key="sql?q").value == EXAMPLES[name]
    assert len(app.dataframe) == 1
    app.button(key="run_query").click().run()
    assert not app.error
    assert len(app.dataframe) == 2


@pytest.mark.parametrize("query", ["", "selec", "drop table runs"])
def test_an_invalid_query_shows_one_error(seeded, query):
    before = list_runs(seeded[0]).to_dict("records")
    app = run_query(open_page("sql"), query)
    assert len(app.error) == 1
    assert len(app.dataframe) == 1
    assert list_runs(seeded[0]).to_dict("records") == before


def test_a_result_with_numbers_has_a_chart(seeded):
    app = run_query(
        open_page("sql", chart="true"),
        "select env_step, name, value from metrics where name in ('train/loss', 'train/q_taken')",
    )
    assert not app.exception
    assert [box.value for box in app.selectbox if str(box.key).startswith("chart_")] == ["env_step", "value", None]
    assert len(app.get("vega_lite_chart")) == 1
    app.selectbox(key="chart_color-env_step,name,value").set_value("name").run()
    assert not app.exception
    app = run_query(open_page("sql", chart="true"), "select name from metrics")
    assert not app.get("vega_lite_chart")
