"""Memories side by side: two embedders, and the paths of a good and a bad episode."""

from pathlib import Path

import numpy as np
import pytest

from app.analysis.selection import NODE_QUANTITIES
from app.cli.main import run
from app.figures.figure import StoredRuns
from app.figures.kinds.maps import Trace
from app.figures.named.memories import (
    N_NEIGHBORS,
    DivergenceOptions,
    compute_local_spread,
    make_embedding_comparison,
    make_strategy_divergence,
)
from app.figures.named.memory_map import draw_memory
from app.figures.options import MethodOptions
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.queries.episodes import get_trajectory
from storage.queries.memory import get_snapshot, list_snapshots
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import seed_run


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory):
    url = f"sqlite:///{tmp_path_factory.mktemp('memories') / 'x.db'}"
    db = open_database(url)
    yield url, db, [seed_run(db, name=name) for name in ("first", "second")]
    db.dispose()


def test_memories_are_drawn_under_one_colour_scale(seeded) -> None:
    _, db, ids = seeded
    maps = make_embedding_comparison(
        StoredRuns(db, [find_run(db, run_id) for run_id in ids]), MethodOptions(method="pca")
    )
    assert [panel.title for panel in maps.panels] == [f"TCSE, 3m ({run_id})" for run_id in ids]
    assert {(panel.x_label, panel.y_label) for panel in maps.panels} == {("PCA 1", "PCA 2")}
    assert maps.low == min(panel.low for panel in maps.panels)
    assert maps.high == max(panel.high for panel in maps.panels)
    assert "local spread" in maps.caption


def test_the_local_spread_is_0_where_neighbors_agree_and_about_1_where_they_do_not(seeded) -> None:
    _, db, ids = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, ids[0])["id"].iloc[-1]))
    rng = np.random.default_rng(0)
    rows = np.arange(400)
    h = np.repeat([0.0, 1.0], 200).astype(np.float32)
    apart = np.stack([h * 100 + rng.random(400)] * 4, axis=1).astype(np.float32)
    mixed = rng.random((400, 4)).astype(np.float32)
    assert compute_local_spread(_with(snapshot, h, apart), rows) == 0
    assert compute_local_spread(_with(snapshot, h, mixed), rows) == pytest.approx(0.93, abs=0.06)
    assert np.isnan(compute_local_spread(_with(snapshot, h, mixed), rows[:N_NEIGHBORS]))


def _with(snapshot, h, embedding):
    return type(snapshot)(**{**vars(snapshot), "h": h, "embedding": embedding})


def test_the_paths_go_through_the_nodes_that_the_episodes_met(seeded) -> None:
    _, db, ids = seeded
    maps = make_strategy_divergence(StoredRuns(db, [find_run(db, ids[0])]), DivergenceOptions())
    snapshot = get_snapshot(db, int(list_snapshots(db, ids[0])["id"].iloc[-1]))
    assert "won" in maps.panels[0].title
    assert "not won" in maps.panels[1].title
    for place, panel in enumerate(maps.panels):
        number = int(panel.title.split()[1].rstrip(","))
        episode, trace = get_trajectory(db, ids[0], number), maps.find_trace(place)
        assert trace is not None
        assert episode.slots is not None
        at = dict(zip(panel.slot.tolist(), zip(panel.x.tolist(), panel.y.tolist(), strict=True), strict=True))
        for t, x, y in zip(trace.t, trace.x, trace.y, strict=True):
            slot = int(episode.slots[t])
            assert (snapshot.row_of(slot) is None) == bool(np.isnan(x))
            if not np.isnan(x):
                assert (float(x), float(y)) == pytest.approx(at[slot])


def test_the_largest_errors_are_named_in_the_order_of_the_path() -> None:
    x = np.array([0, 1, np.nan, 3, 4], np.float32)
    trace = Trace("a", "#000000", np.arange(5), x, x, np.array([0.5, 0.0, 9.0, 2.0, np.nan]))
    assert trace.find_largest_errors().tolist() == [0, 3]
    assert trace.find_largest_errors(limit=1).tolist() == [3]


@pytest.mark.parametrize(
    "format", ["svg", *(pytest.param(format, marks=pytest.mark.ci) for format in ("csv", "pdf", "png", "html"))]
)
def test_both_figures_are_written_in_every_format(seeded, tmp_path: Path, format: str) -> None:
    url, _, ids = seeded
    for figure, runs in (("strategy-divergence", ids[:1]), ("embedding-comparison", ids)):
        if (figure, format) == ("embedding-comparison", "html"):
            continue  # its t-SNE is computed once, for the other formats
        out = tmp_path / f"{figure}.{format}"
        assert run(["export", *runs, "--figure", figure, "--out", str(out), "--db", url]) == 0
        assert out.stat().st_size > 1000


def test_chosen_episodes_are_followed_and_unusable_ones_refused(seeded, tmp_path: Path, capsys) -> None:
    url, db, ids = seeded
    out = tmp_path / "x.csv"
    command = ["export", ids[0], "--figure", "strategy-divergence", "--out", str(out), "--db", url]
    assert run([*command, "--episodes", "2,1"]) == 0
    assert "episode 2," in out.read_text(encoding="utf-8")
    assert run([*command, "--episodes", "2"]) == 2
    assert "two numbers" in capsys.readouterr().err
    with raises(ConfigError, key="embedding-comparison"):
        make_embedding_comparison(StoredRuns(db, [find_run(db, ids[0])]), MethodOptions())


def test_the_encoders_are_timed_beside_each_other(capsys) -> None:
    assert run(["export", "--table", "encoder-timing"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("state_dim,batch,seq,")
    assert len(lines) == 11


def test_a_map_brings_every_quantity_along_if_asked_and_keeps_the_coloured_one_first(seeded) -> None:
    _, db, ids = seeded
    snapshot = get_snapshot(db, int(list_snapshots(db, ids[0])["id"].iloc[-1]))
    rows = np.arange(snapshot.size)
    texts = {"x_label": "x", "y_label": "y", "title": "Map", "caption": ""}
    plain = draw_memory(snapshot, rows, snapshot.embedding[:, :2], quantity="beta", **texts)
    assert plain.to_frame().columns.tolist() == ["slot", "x", "y", "beta"]
    told = draw_memory(
        snapshot, rows, snapshot.embedding[:, :2], quantity="beta", all_quantities=True, **texts
    ).to_frame()
    assert told.columns.tolist() == ["slot", "x", "y", "beta", *(key for key in NODE_QUANTITIES if key != "beta")]
    by_slot = told.set_index("slot").loc[snapshot.slot]
    np.testing.assert_array_equal(by_slot["h"], snapshot.h.astype(np.float32))
    np.testing.assert_array_equal(by_slot["t"], snapshot.t.astype(np.float32))
