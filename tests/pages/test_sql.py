"""Ask in SQL: the box reads, the schema stands beside it, and what fails is one sentence."""

import pytest
from streamlit.delta_generator import DeltaGenerator

from storage.queries.runs import list_runs
from storage.sql_console.glossary import EXAMPLES
from tests.pages.test_pages import open_page, said


def ask(app, query):
    app.text_area(key="q").set_value(query)
    app.button(key="ask").click().run()
    assert not app.exception
    return app


def test_an_empty_database_is_asked_too(empty):
    app = ask(open_page("sql"), "select * from runs")
    assert not app.error
    assert "No row answers this" in said(app)


def test_an_answer_stands_below_with_its_size_and_stays(seeded):
    app = ask(open_page("sql"), "select name, win_rate from runs")
    assert app.dataframe[1].value.to_dict("records") == [{"name": "Seeded run", "win_rate": 0.5}]
    assert "1 row\\." in said(app)
    app.selectbox(key="table").set_value("metrics").run()
    assert app.dataframe[0].value["Column"].tolist() == ["run_id", "env_step", "name", "value"]
    assert len(app.dataframe) == 2


def test_more_rows_than_asked_for_are_said_to_be_more(seeded):
    app = open_page("sql")
    app.selectbox(key="rows").set_value(100)
    ask(app, "select * from transitions")
    assert "The first 100 rows; there are more" in said(app)


def test_an_example_fills_the_box_and_is_answered(seeded):
    app = open_page("sql")
    name = next(iter(EXAMPLES))
    app.selectbox(key="example").set_value(name).run()
    assert app.text_area(key="q").value == EXAMPLES[name]
    app.button(key="ask").click().run()
    assert not app.error
    assert len(app.dataframe) == 2


@pytest.mark.parametrize("query", ["", "selec", "drop table runs", "select 1; select 2", "attach 'x' as y"])
def test_what_cannot_be_asked_is_one_sentence(seeded, query):
    before = list_runs(seeded[0]).to_dict("records")
    app = ask(open_page("sql"), query)
    assert len(app.error) == 1
    assert len(app.dataframe) == 1
    assert list_runs(seeded[0]).to_dict("records") == before


def test_a_link_fills_the_box_and_asks_nothing(seeded):
    app = open_page("sql", q="select 1 as one")
    assert app.text_area(key="q").value == "select 1 as one"
    assert len(app.dataframe) == 1


def test_the_button_is_there_before_the_box(seeded, monkeypatch):
    """Ctrl+Enter in a form without a button asks nothing: on a busy machine the question stood there unasked."""
    sent, send = [], DeltaGenerator._enqueue

    def listen(self, kind, *args, **kwargs):
        sent.append(kind)
        return send(self, kind, *args, **kwargs)

    monkeypatch.setattr(DeltaGenerator, "_enqueue", listen)
    open_page("sql")
    assert sent.index("button") < sent.index("text_area")


def test_a_server_that_only_shows_answers(seeded, monkeypatch, use_database):
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    use_database(seeded[0].path)
    assert not ask(open_page("sql"), "select name from runs").error
