"""SQL: queries are read-only, the tables are described, and a failed query shows one error."""

import json

import pytest
from streamlit.delta_generator import DeltaGenerator

from storage.queries.runs import list_runs
from storage.sql.glossary import EXAMPLES
from tests.pages.test_pages import open_page, said


def run_query(app, query):
    app.text_area(key="sql?q").set_value(query)
    app.button(key="run_query").click().run()
    assert not app.exception
    return app


def test_an_empty_database_can_be_queried(empty):
    app = run_query(open_page("sql"), "select * from runs")
    assert not app.error
    assert "returned no rows" in said(app)


def test_a_result_is_shown_with_its_number_of_rows_until_the_next_query(seeded):
    app = run_query(open_page("sql"), "select name, win_rate from runs")
    assert app.dataframe[1].value.to_dict("records") == [{"name": "Seeded run", "win_rate": 0.5}]
    assert "1 row\\." in said(app)
    app.selectbox(key="sql?table").set_value("metrics").run()
    assert app.dataframe[0].value["Column"].tolist() == ["run_id", "env_step", "name", "value"]
    assert len(app.dataframe) == 2


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


def test_an_example_is_inserted_and_can_be_run(seeded):
    app = open_page("sql")
    name = next(iter(EXAMPLES))
    app.selectbox(key="example").set_value(name).run()
    assert app.text_area(key="sql?q").value == EXAMPLES[name]
    app.button(key="run_query").click().run()
    assert not app.error
    assert len(app.dataframe) == 2


@pytest.mark.parametrize("query", ["", "selec", "drop table runs", "select 1; select 2", "attach 'x' as y"])
def test_an_invalid_query_shows_one_error(seeded, query):
    before = list_runs(seeded[0]).to_dict("records")
    app = run_query(open_page("sql"), query)
    assert len(app.error) == 1
    assert len(app.dataframe) == 1
    assert list_runs(seeded[0]).to_dict("records") == before


def test_a_long_query_can_be_cancelled(seeded):
    app = run_query(
        open_page("sql"), "with recursive c(x) as (select 1 union all select x + 1 from c) select sum(x) from c"
    )
    app.button(key="cancel").click().run()
    while any(button.key == "cancel" for button in app.button):
        app.run()
    assert "cancelled" in app.error[0].value
    assert not run_query(app, "select 1 as one").error


def test_a_link_inserts_the_query_and_does_not_run_it(seeded):
    app = open_page("sql", q="select 1 as one")
    assert app.text_area(key="sql?q").value == "select 1 as one"
    assert len(app.dataframe) == 1


def test_the_button_is_sent_before_the_text_area(seeded, monkeypatch):
    """Ctrl+Enter does nothing in a form whose button has not arrived yet, which happens on a busy machine."""
    sent, send = [], DeltaGenerator._enqueue

    def record(self, kind, *args, **kwargs):
        sent.append(kind)
        return send(self, kind, *args, **kwargs)

    monkeypatch.setattr(DeltaGenerator, "_enqueue", record)
    open_page("sql")
    assert sent.index("button") < sent.index("text_area")


def test_a_read_only_server_runs_queries(seeded, monkeypatch, use_database):
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    use_database(seeded[0].path)
    assert not run_query(open_page("sql"), "select name from runs").error


def test_the_id_of_a_run_is_a_link_and_another_id_is_not(seeded):
    run_id = seeded[1]
    app = run_query(open_page("sql"), "select id, name from runs")
    (link,) = app.dataframe[1].value["id"]
    assert link.startswith("run?")
    assert link.endswith(f"run={run_id}")
    app = run_query(open_page("sql"), "select run_id, id from snapshots")
    assert app.dataframe[1].value["run_id"].str.endswith(f"run={run_id}").all()
    assert app.dataframe[1].value["id"].tolist() == [1, 2]


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
    app = run_query(open_page("sql", chart="true"), "select name from runs")
    assert not app.get("vega_lite_chart")
