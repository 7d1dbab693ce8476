"""What if, on the Memory page: nothing is computed before it is opened, a slider answers, a link reproduces it."""

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import update

from app.analysis.tables import MISSING
from emtc_core import plugins
from emtc_core.gate_laws import GateLaw
from storage.models import GateStats
from tests.pages.test_pages import open_page, said

WHAT_IF = ("wi_tau", "wi_tau_fixed", "wi_delta", "wi_lookup", "wi_next")


def _table(app) -> pd.DataFrame | None:
    frames = [frame.value for frame in app.dataframe if "recomputed" in frame.value.columns]
    return frames[0].set_index("quantity") if frames else None


def _numbers(app, quantity: str) -> list[float]:
    """Read one row of the table: recorded, recomputed, difference."""
    return [float(cell.replace(",", "").replace("−", "-")) for cell in _table(app).loc[quantity]]


def _slide(app, label: str, value: str):
    next(slider for slider in app.select_slider if slider.label.startswith(label)).set_value(value)
    return app.run()


@pytest.mark.parametrize("hostile", [None, "1e999", "-1", "<b>", ""])
def test_opened_it_shows_the_record_also_with_invalid_values_in_the_url(seeded, hostile):
    assert _table(open_page("memory", run=seeded[1])) is None, "nothing is computed before"
    query = {} if hostile is None else dict.fromkeys(WHAT_IF, hostile)
    app = open_page("memory", run=seeded[1], what_if="true", **query)
    assert not app.exception
    assert not app.error
    assert list(_table(app).columns) == ["recorded", "recomputed", "difference"]
    for quantity in ("transitions: β̄", "links: β̄", "links: Δ̄_mem [return]", "transitions: incentive removed [%]"):
        recorded, recomputed, difference = _numbers(app, quantity)
        assert (recorded, difference) == (recomputed, 0.0), quantity
    assert "a smaller δ cannot split" in said(app)


def test_a_sample_of_the_memory_offers_only_tau(seeded):
    db, run_id = seeded
    with db.transaction() as connection:
        connection.execute(update(GateStats).values(memory_size=10 * GateStats.memory_size))
    app = open_page("memory", run=run_id, what_if="true", wi_delta="2")
    assert not app.exception
    assert not app.error
    assert [slider.label for slider in app.select_slider if slider.label.startswith("δ")] == []
    assert list(_table(app).loc["links: incentive removed [%]"]) == [MISSING] * 3
    assert all(np.isfinite(_numbers(app, "links: Δ̄_mem [return]")))
    assert "needs a whole snapshot" in said(app).replace("\\", "")


def test_another_tau_opens_or_closes_the_gates_and_is_in_the_url(seeded):
    app = open_page("memory", run=seeded[1], what_if="true")
    app = _slide(app, "τ × recorded", "0.1")
    assert not app.exception
    recorded, colder, _ = _numbers(app, "transitions: β̄")
    assert colder < recorded
    assert app.query_params["wi_tau"] in ("0.1", ["0.1"])
    app = _slide(app, "τ × recorded", "10")
    assert _numbers(app, "transitions: β̄")[1] > recorded
    app = _slide(app, "τ × recorded", "1")
    assert "wi_tau" not in app.query_params


def test_a_link_reproduces_the_view(seeded):
    with seeded[0].transaction() as connection:  # its made-up nodes lie far apart
        connection.exec_driver_sql("UPDATE runs SET config = json_set(config, '$.memory.delta', 0.001)")
    query = {"what_if": "true", "wi_tau_fixed": "3", "wi_delta": "1000", "wi_lookup": "written", "wi_next": "link"}
    app = open_page("memory", run=seeded[1], **query)
    assert not app.exception
    assert _numbers(app, "τ at the snapshot [return]")[1] == 3.0
    before, after, _ = _numbers(app, "nodes")
    assert after < before
    chosen = {box.label: box.value for box in app.selectbox}
    assert chosen["H(s) source"] == "written"
    assert chosen["H(s′) source"] == "link"
    for source in ("wi_lookup", "wi_next"):
        other = open_page("memory", run=seeded[1], **{name: text for name, text in query.items() if name != source})
        assert _numbers(other, "links: Δ̄_mem [return]")[1] != _numbers(app, "links: Δ̄_mem [return]")[1], source


@pytest.mark.parametrize("law", ["paper", "with an inverse", "without an inverse"])
def test_without_transitions_the_links_are_evaluated_with_a_tau_if_the_gate_law_has_an_inverse(
    seeded, monkeypatch, law
):
    db, run_id = seeded
    monkeypatch.setattr(plugins, "_REGISTERED", {})

    def linear_beta(delta, tau, context):
        return (1 - delta / (2 * tau)).clip(0, 1)

    inverse = None if law == "without an inverse" else lambda beta, delta: delta / (2 * (1 - beta))
    plugins.register("gate", "linear_gate", lambda: GateLaw(linear_beta, inverse))
    with db.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM transitions")
        if law != "paper":
            connection.exec_driver_sql("UPDATE runs SET config = json_set(config, '$.gate.type', 'linear_gate')")
    app = open_page("memory", run=run_id, what_if="true")
    assert not app.exception
    assert not app.error
    assert "No transition up to this snapshot is stored" in said(app).replace("\\", "")
    assert not any(name.startswith("transitions") for name in _table(app).index)
    if law == "paper":
        assert _numbers(app, "links: β̄")[2] == 0.0
    tau = _table(app).loc["τ at the snapshot [return]", "recorded"]
    assert (tau == MISSING) == any("no inverse" in each.value for each in app.warning) == (law == "without an inverse")
