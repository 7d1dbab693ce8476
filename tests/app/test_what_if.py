"""The gate judged again by another tau, delta or lookup rule, against loops and plain SQL."""

import math
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.analysis.tables import MISSING
from app.analysis.what_if import (
    GateSettings,
    RecordedTransitions,
    WhatIfResult,
    WhatIfSettings,
    WhatIfValues,
    compute_gate_means,
    evaluate_what_if,
    explain_tau,
    find_tau,
    merge_nodes,
    read_gate_settings,
    read_recorded_transitions,
    tabulate_what_if,
)
from app.figures.named.what_if import describe_change, draw_what_if
from app.figures.registry import TABLES
from emtc_core import plugins
from emtc_core.config.memory import GateConfig, IncentiveConfig, MemoryConfig
from emtc_core.errors import ConfigError
from emtc_core.gate.gate import make_gate_law
from emtc_core.gate_laws import GateLaw, unknown_context
from emtc_core.learner.targets import Incentive, gate_ratios
from emtc_core.plugins import register
from storage.engine import open_database
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import TAU, seed_run
from tests.reference.what_if import Stored, looped_links, looped_remerge, scaled

GAMMA = 0.9
GATES = st.builds(
    GateConfig,
    lookup=st.sampled_from(["nearest", "written"]),
    successor=st.sampled_from(["nn", "link"]),
    on_miss=st.sampled_from(["block", "pass"]),
    terminal_value=st.sampled_from(["zero", "lookup"]),
    delta_scale=st.sampled_from([1.0, 0.5]),
)
SEEDS = st.integers(0, 10_000)
FACTORS = st.sampled_from([1.0, 1.78, 10.0, 100.0, 3160.0])


@pytest.fixture
def seeded(tmp_path, sqlite_template):
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'seed.db')}")
    run_id = seed_run(db)
    yield db, run_id
    db.dispose()


def _rules(gate: GateConfig | None = None, memory: MemoryConfig | None = None, **incentive: object) -> GateSettings:
    memory = memory or MemoryConfig(delta=0.01, delta_space="raw")
    return GateSettings(gate or GateConfig(), IncentiveConfig.model_validate(incentive), memory, GAMMA, False)


def _snapshot(seed: int, size: int = 30, tau: float = 0.8, scale: float = 1.0) -> Snapshot:
    """A memory with gaps among its slots, whose delta_mem and beta follow from its own H along its own links."""
    rng = np.random.default_rng(seed)
    slot = np.sort(rng.choice(3 * size, size, replace=False))
    link = np.where(rng.random(size) < 0.8, rng.choice(slot, size), -1)
    h, reward = rng.integers(0, 4, size).astype(np.float32), rng.choice([0.0, 0.5, 1.0], size).astype(np.float32)
    then = h[np.searchsorted(slot, np.maximum(link, slot[0]))]
    error = np.where(link >= 0, np.abs(reward + GAMMA * then.astype(float) - h), np.nan)
    calls = rng.integers(1, 9, size)
    places = rng.normal(size=(6, 4))[rng.integers(0, 6, size)] + rng.normal(size=(size, 4)) * 0.05
    return Snapshot(
        id=1, run_id="r", env_step=size, slot=slot, embedding=places.astype(np.float32), h=h, xi=rng.random(size) < 0.4,
        n_call=calls.astype(np.int32), n_xi=rng.integers(0, calls + 1).astype(np.int32),
        t=np.arange(size, dtype=np.int32), reward=reward, idx_next=link, episode=rng.integers(1, 5, size),
        delta_mem=error.astype(np.float32), beta=np.exp(-((scale * error) ** 2) / (2 * tau**2)).astype(np.float32),
        state_rows=np.zeros(0, np.int64), state=np.zeros((0, 3), np.float16), age=np.zeros(size, np.float32),
    )  # fmt: skip


def _stream(seed: int, snapshot: Snapshot, n: int = 50) -> RecordedTransitions:
    rng = np.random.default_rng(seed + 1)
    error = np.where(rng.random(n) < 0.2, np.nan, rng.gamma(1.0, 0.5, n))
    tau = np.linspace(1.2, 0.6, n)
    beta = np.where(np.isnan(error), 0.0, np.exp(-(error**2) / (2 * tau**2)))
    slots = np.append(snapshot.slot, [-1, 10**6])
    return RecordedTransitions(error, beta, tau, rng.choice(slots, n), rng.choice(slots, n), rng.random(n) < 0.1)


NONE = RecordedTransitions(
    *(np.zeros(0) for _ in range(3)), *(np.zeros(0, np.int64) for _ in range(2)), np.zeros(0, bool)
)


# -- tau --


@settings(max_examples=60, deadline=None)
@given(
    seed=SEEDS,
    factor=st.floats(0.1, 10),
    fixed=st.none() | st.floats(0.1, 10),
    clamp=st.sampled_from(["none", "positive"]),
)
def test_another_tau_equals_a_loop_over_the_transitions(
    seed: int, factor: float, fixed: float | None, clamp: str
) -> None:
    snapshot = _snapshot(seed)
    stream, rules = _stream(seed, snapshot), _rules(clamp=clamp)
    found = evaluate_what_if(snapshot, stream, rules, WhatIfSettings(tau_factor=factor, tau_fixed=fixed)).sets[0]
    place = {int(slot): row for row, slot in enumerate(snapshot.slot)}
    total = removed = removed_before = 0.0
    for i in range(len(stream.beta)):
        error, tau = float(stream.delta_mem[i]), fixed if fixed is not None else factor * float(stream.tau[i])
        beta = float(stream.beta[i]) if math.isnan(error) else math.exp(-(error**2) / (2 * tau**2))
        row = place.get(int(stream.next_slot[i]))
        rho = 0.0 if row is None or stream.ends[i] else snapshot.n_xi[row] / snapshot.n_call[row]
        r_p = 0.0 if row is None else GAMMA * rho * float(snapshot.h[row])
        assert found.recomputed.beta[i] == pytest.approx(beta, abs=1e-12)
        total += abs(r_p)
        removed += (1 - beta) * abs(r_p)
        removed_before += (1 - float(stream.beta[i])) * abs(r_p)
    assert compute_gate_means(found.recomputed).removed == pytest.approx(removed / total if total else 0.0)
    assert compute_gate_means(found.recorded).removed == pytest.approx(removed_before / total if total else 0.0)


def test_the_removed_share_is_the_metric_of_that_name() -> None:
    rng = np.random.default_rng(0)
    r_p, beta = rng.normal(size=40), rng.random(40)
    ours = compute_gate_means(WhatIfValues(np.zeros(40), beta, r_p))
    tensors = torch.tensor(r_p), torch.tensor(beta)
    theirs = gate_ratios(Incentive(tensors[0], tensors[0] * tensors[1]), tensors[1], torch.ones(40))
    ratio = {name: float(part / whole) for name, (part, whole) in theirs.items()}
    assert ours.removed == pytest.approx(ratio["gate/incentive_removed"])
    assert ours.closed == pytest.approx(ratio["gate/closed_fraction"])


@pytest.fixture
def gate_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates of plug-ins: the guide's linear gate with its inverse, and one that has none."""
    monkeypatch.setattr(plugins, "_REGISTERED", {})

    def linear_beta(delta, tau, context):
        return (1 - delta / (2 * tau)).clip(0, 1)

    def linear_temperature(beta, delta):
        return delta / (2 * (1 - beta))

    register("gate", "linear_gate", lambda: GateLaw(linear_beta, linear_temperature))
    register("gate", "cauchy", lambda: GateLaw(lambda delta, tau, context: 1 / (1 + (delta / tau) ** 2)))


def _judged_by(gate: GateConfig, tau: float) -> Snapshot:
    snapshot = _snapshot(1)
    linked, beta = np.isfinite(snapshot.delta_mem), np.full(snapshot.size, np.nan)
    error = snapshot.delta_mem[linked].astype(np.float64)
    beta[linked] = make_gate_law(gate).weigh(error, tau, unknown_context(error.shape))
    return replace(snapshot, beta=beta.astype(np.float32))


@pytest.mark.parametrize("type", ["gaussian", "linear_gate"])
def test_tau_at_the_snapshot_comes_from_the_inverse_of_the_gate_law(type: str, gate_laws: None) -> None:
    gate = GateConfig(type=type, delta_scale=0.5)
    assert find_tau(_judged_by(gate, 1.0), NONE, gate) == pytest.approx(1.0, rel=1e-5)
    found = evaluate_what_if(_judged_by(gate, 1.0), NONE, _rules(gate), WhatIfSettings())
    np.testing.assert_allclose(found.sets[0].recomputed.beta, found.sets[0].recorded.beta, atol=1e-6)
    assert (found.law_without_inverse, explain_tau(found)) == (None, "")
    silent = replace(_snapshot(1), beta=np.ones(30, np.float32), delta_mem=np.zeros(30, np.float32))
    assert find_tau(silent, _stream(1, silent), gate) == 0.6, "where no beta determines tau, the newest recorded one"
    assert find_tau(silent, NONE, GateConfig(type=type, tau_end=0.25)) == 0.25


def test_a_gate_law_without_an_inverse_has_the_newest_recorded_tau_or_none(gate_laws: None) -> None:
    gate = GateConfig(type="cauchy")
    snapshot = _judged_by(gate, 0.6)
    stream = _stream(1, snapshot)
    rows = np.flatnonzero(snapshot.slot == stream.slot[np.isin(stream.slot, snapshot.slot)][0])
    known = evaluate_what_if(snapshot, stream, _rules(gate), WhatIfSettings(), rows=rows)
    assert known.tau == 0.6, "that of all transitions, not of the selected ones"
    unknown = evaluate_what_if(snapshot, NONE, _rules(gate), WhatIfSettings())
    assert math.isnan(unknown.tau)
    assert np.isnan(unknown.sets[0].recomputed.beta).any()
    assert list(tabulate_what_if(unknown).frame.iloc[0, 1:]) == [MISSING] * 3
    assert explain_tau(known) != explain_tau(unknown) in draw_what_if(unknown, run="r", env_step=1).caption
    fixed = evaluate_what_if(snapshot, NONE, _rules(gate), WhatIfSettings(tau_fixed=0.6))
    np.testing.assert_allclose(fixed.sets[0].recomputed.beta, fixed.sets[0].recorded.beta, atol=1e-6)
    assert describe_change(fixed).startswith("What if τ were 0.6 at the snapshot?")


# -- delta and the lookup rules --


def _listed(snapshot: Snapshot, memory: MemoryConfig) -> list[Stored]:
    place = {int(slot): row for row, slot in enumerate(snapshot.slot)}
    return [
        Stored(
            z, int(snapshot.episode[i]), int(snapshot.t[i]), float(snapshot.h[i]), bool(snapshot.xi[i]),
            int(snapshot.n_call[i]), int(snapshot.n_xi[i]), place.get(int(snapshot.idx_next[i])),
            float(snapshot.reward[i]),
        )
        for i, z in enumerate(scaled(snapshot.embedding, memory))
    ]  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(gate=GATES, seed=SEEDS, factor=FACTORS, tau=st.floats(0.2, 3.0), space=st.sampled_from(["normalized", "raw"]))
def test_merged_links_equal_the_loops(gate: GateConfig, seed: int, factor: float, tau: float, space: str) -> None:
    memory = MemoryConfig.model_validate({"delta": 0.001, "delta_space": space})
    snapshot, rules = _snapshot(seed), _rules(gate, memory)
    question = WhatIfSettings(tau_fixed=tau, delta_factor=factor, lookup=gate.lookup, successor=gate.successor)
    merged = merge_nodes(snapshot, rules, factor)
    found = evaluate_what_if(snapshot, NONE, rules, question, merged=merged)
    nodes = _listed(snapshot, memory)
    looped = looped_remerge(nodes, factor * 0.001, memory)
    expected = np.array(looped_links(nodes, looped, gate=gate, gamma=GAMMA, tau=tau)).reshape(-1, 2)
    np.testing.assert_allclose(found.sets[0].recomputed.delta_mem, expected[:, 0], atol=1e-6)
    np.testing.assert_allclose(found.sets[0].recomputed.beta, expected[:, 1], atol=1e-5)
    assert found.n_nodes_after == len(set(looped[0]))
    np.testing.assert_allclose(found.sets[0].recomputed.r_p, _looped_incentive(nodes, looped[0], looped[2]))


def _looped_incentive(nodes: list[Stored], holder: list[int], ended: list[Stored]) -> list[float]:
    """r_p of every link with Q(s') = 0: gamma H N_xi / N_call of the node that now holds the successor."""
    offered = []
    for node in nodes:
        if node.next is not None:
            there, was = ended[holder[node.next]], nodes[node.next]
            is_end = was.next is None and was.h == 0
            offered.append(0.0 if is_end else GAMMA * there.h * there.n_xi / there.n_call)
    return offered


@pytest.mark.parametrize(("factor", "first", "key"), [(0.5, 0.0, "memory.delta"), (1.0, np.inf, "snapshot 1")])
def test_a_smaller_delta_and_an_embedding_that_is_not_finite_are_refused(factor, first, key) -> None:
    snapshot = _snapshot(0)
    snapshot.embedding[0, 0] = first
    with raises(ConfigError, key=key):
        merge_nodes(snapshot, _rules(), factor)


def test_a_selection_is_judged_alone_in_the_memory_of_all() -> None:
    snapshot = _snapshot(3)
    stream, rules, rows = _stream(3, snapshot), _rules(), np.array([2, 5, 6, 11, 20])
    merged = merge_nodes(snapshot, rules, 100.0)
    question = WhatIfSettings(tau_factor=0.5, delta_factor=100.0)
    whole, part = (evaluate_what_if(snapshot, stream, rules, question, merged=merged, rows=r) for r in (None, rows))
    inside = np.isin(stream.slot, snapshot.slot[rows])
    np.testing.assert_array_equal(part.sets[0].recomputed.beta, whole.sets[0].recomputed.beta[inside])
    linked = np.flatnonzero(snapshot.idx_next >= 0)
    np.testing.assert_array_equal(part.sets[1].recomputed.beta, whole.sets[1].recomputed.beta[np.isin(linked, rows)])
    assert (part.n_nodes, part.n_nodes_after) == (5, len(set(merged.node[rows].tolist())))


# -- from the database --


def test_the_stream_is_what_plain_sql_says(seeded) -> None:
    db, run_id = seeded
    rules = read_gate_settings(find_run(db, run_id).config)
    until = int(list_snapshots(db, run_id)["env_step"].iloc[0])
    stream = read_recorded_transitions(db, run_id, rules, until=until, limit=40)
    with sqlite3.connect(db.path) as connection:
        rows = connection.execute(
            "SELECT delta_mem, beta, tau, slot, next_slot, t = (SELECT MAX(t) FROM transitions b WHERE b.run_id = "
            "a.run_id AND b.episode = a.episode) FROM transitions a WHERE run_id = ? AND env_step <= ? "
            "ORDER BY env_step DESC LIMIT 40",
            (run_id, until),
        ).fetchall()[::-1]
    assert len(rows) == 40
    for name, column in zip(("delta_mem", "beta", "tau", "slot", "next_slot"), zip(*rows, strict=True), strict=False):
        np.testing.assert_allclose(getattr(stream, name), column)
    assert stream.ends[:-1].tolist() == [bool(row[5]) for row in rows[:-1]]


def test_a_target_that_goes_on_after_a_time_limit_ends_where_h_next_is_0(seeded) -> None:
    db, run_id = seeded
    rules = read_gate_settings(find_run(db, run_id).config)
    until = int(list_snapshots(db, run_id)["env_step"].iloc[-1])
    before = read_recorded_transitions(db, run_id, rules, until=until)
    last = int(np.flatnonzero(before.ends)[1]) + 1
    with db.transaction() as connection:
        connection.exec_driver_sql(f"UPDATE transitions SET h_next = 0.25 WHERE env_step = {last}")
    going_on = read_recorded_transitions(db, run_id, replace(rules, bootstrap_on_timeout=True), until=until)
    assert np.flatnonzero(before.ends & ~going_on.ends).tolist() == [last - 1]
    assert read_recorded_transitions(db, run_id, rules, until=until).ends.sum() == before.ends.sum()


def test_a_run_without_a_gate_is_judged_by_what_it_looked_up(seeded) -> None:
    db, run_id = seeded
    with db.transaction() as connection:
        connection.exec_driver_sql("UPDATE transitions SET delta_mem = NULL, beta = NULL, tau = NULL")
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    rules = read_gate_settings(find_run(db, run_id).config)
    stream = read_recorded_transitions(db, run_id, rules, until=snapshot.env_step)
    found = evaluate_what_if(snapshot, stream, rules, WhatIfSettings()).sets[0]
    assert np.isnan(found.recorded.beta).all()
    expected = np.exp(-(stream.delta_mem**2) / (2 * TAU**2))
    np.testing.assert_allclose(found.recomputed.beta, expected, rtol=1e-4)
    table = tabulate_what_if(evaluate_what_if(snapshot, stream, rules, WhatIfSettings()))
    assert table.frame[table.frame["quantity"] == "transitions: β̄"]["recorded"].item() == "–"


def test_the_table_of_runs_has_the_recorded_and_recomputed_gate_of_each_run_also_with_equal_names(seeded) -> None:
    db, gated = seeded
    ungated = seed_run(db)
    with db.transaction() as connection:
        wanted = "UPDATE transitions SET delta_mem = NULL, beta = NULL, tau = NULL WHERE run_id = ?"
        connection.exec_driver_sql(wanted, (ungated,))
        connection.exec_driver_sql("UPDATE runs SET gate_removed = NULL WHERE id = ?", (ungated,))
        betas = "SELECT avg(beta), 100 * avg(beta < 0.5), count(*) FROM transitions WHERE run_id = ?"
        beta, closed, n = connection.exec_driver_sql(betas, (gated,)).one()
        removed = connection.exec_driver_sql("SELECT 100 * gate_removed FROM runs WHERE id = ?", (gated,)).scalar_one()
    table = TABLES["what-if"].make(db, [find_run(db, gated), find_run(db, ungated)])
    own, other = table.frame.drop(columns="incentive removed [%], recomputed").to_numpy().tolist()
    said = [f"{beta:.4f}", f"{closed:.2f}"]
    assert own == ["Seeded run", n, said[0], said[0], said[1], said[1], f"{removed:.2f}"]
    assert other == ["Seeded run", n, "–", said[0], "–", said[1], "–"]


def test_a_run_whose_transitions_were_thinned_away_is_left_out_by_name(seeded) -> None:
    db, run_id = seeded
    with db.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM transitions")
    table = TABLES["what-if"].make(db, [find_run(db, run_id)])
    assert not len(table)
    assert table.excluded == ("Seeded run: no transitions are stored for its snapshots",)


def test_a_stored_setting_that_cannot_be_is_named() -> None:
    with raises(ConfigError, key="gate.tau_end", value="hot"):
        read_gate_settings({"gate": {"tau_end": "hot"}})
    with raises(ConfigError, key="train.gamma", value="high"):
        read_gate_settings({"train": {"gamma": "high"}})
    assert read_gate_settings({"memory": {"delta": 0.5, "unheard_of": 1}, "gate": None}).memory.delta == 0.5


# -- what is shown --


def test_the_table_subtracts_and_the_figure_sorts() -> None:
    snapshot = _snapshot(7)
    stream, rules = _stream(7, snapshot), _rules()
    question = WhatIfSettings(tau_factor=0.5, delta_factor=100.0)
    found = evaluate_what_if(snapshot, stream, rules, question, merged=merge_nodes(snapshot, rules, 100.0))
    table = tabulate_what_if(found)
    numbers = table.frame.set_index("quantity").map(lambda text: float(text.replace(",", "")))
    for name, row in numbers.iterrows():
        assert row["recomputed"] - row["recorded"] == pytest.approx(row["difference"], abs=0.02), name
    passed, removed = (numbers.loc[f"links: incentive {what} [%]", "recomputed"] for what in ("passed", "removed"))
    assert passed + removed == pytest.approx(100, abs=0.02)
    chart = draw_what_if(found, run="a run", env_step=30)
    assert [panel.title for panel in chart.panels] == ["β of transitions", "β of links", "Δ_mem of links"]
    assert chart.subtitle == ""
    for panel, line in chart.panel_lines:
        assert line.name in ("recorded", "recomputed")
        order = np.diff(line.y)
        assert (order <= 0).all() if panel.title.startswith("Δ") else (order >= 0).all()
    links = next(
        line for panel, line in chart.panel_lines if panel.title == "Δ_mem of links" and line.name == "recomputed"
    )
    assert links.y[0] == np.nanmax(found.sets[1].recomputed.delta_mem)


@pytest.mark.parametrize(
    ("tau", "delta", "asked"),
    [
        ((0.6, 0.6), (1e-5, 1e-5), "τ = 0.6 at the snapshot and δ = 1e-05, as in the run."),
        ((0.6, 1.2), (1e-5, 1e-5), "What if τ were 1.2 at the snapshot instead of 0.6?"),
        ((0.6, 0.6), (1e-5, 2e-5), "What if δ were 2e-05 instead of 1e-05?"),
    ],
)
def test_the_caption_asks_only_about_what_would_be_otherwise(tau, delta, asked) -> None:
    assert describe_change(WhatIfResult((), 0, 0, *tau, *delta)) == asked
