"""A sample of a snapshot: whole episodes, nothing changed in what is kept, a link to what was left out still a link."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emtc_core.errors import DataRemovedError
from storage.bundles.contents import Contents, select_evenly_spaced
from storage.bundles.read import open_bundle
from storage.bundles.write import write_bundle
from storage.engine import open_database
from storage.maintenance.check import check_run
from storage.projections import save_projection
from storage.queries.episodes import get_trajectory
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.projections import find_embedding, find_projection
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, make_snapshot, record_episodes

EPISODES, LENGTH = 12, 10


@pytest.fixture
def recorded(tmp_path: Path):
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    run_id = create_run(db, CONFIG, target_steps=120, versions={"emtc-lab": "0.1.0"})
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, EPISODES, length=LENGTH)
    for step in (20, 60, 120):
        recorder.record_snapshot(make_snapshot(step, EPISODES))
    recorder.close()
    return db, run_id


@given(steps=st.lists(st.integers(1, 10_000), min_size=1, unique=True).map(sorted), n=st.integers(1, 9))
def test_snapshots_are_spread_and_end_with_the_last(steps: list[int], n: int) -> None:
    places = select_evenly_spaced(steps, n)
    assert places == sorted(set(places))
    assert len(places) <= n
    assert places[-1] == len(steps) - 1


@pytest.mark.parametrize("max_nodes", [45, 10_000])
def test_a_sampled_bundle_is_sound_and_keeps_whole_episodes(recorded, tmp_path: Path, max_nodes: int) -> None:
    db, run_id = recorded
    whole = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[-1]))
    fitted = np.arange(4 * whole.size, dtype=np.float32).reshape(-1, 4)
    save_projection(db, whole.id, method="embed-dcae", params={"seed": 0}, coordinates=fitted, seconds=0.1)
    save_projection(db, whole.id, method="pca", params={"seed": 0}, coordinates=fitted[:, :2], seconds=0.1)
    contents = Contents(
        snapshots=False, playbacks=False, transitions=False,
        kept_episodes={run_id: frozenset({3, 7})}, sampled_snapshots={run_id: 2}, max_sample_nodes=max_nodes,
    )  # fmt: skip
    place = tmp_path / "x.emtc"
    write_bundle(db, [run_id], place, contents, made_by="a test")
    study, facts = open_bundle(place, cache=tmp_path / "cache")
    there = open_database(f"sqlite:///{study}", read_only=True)
    assert facts.contents == contents
    assert check_run(there, run_id) == []
    assert list_snapshots(there, run_id)["env_step"].tolist() == [60, 120]
    kept = get_snapshot(there, int(list_snapshots(there, run_id)["id"].iloc[-1]))
    assert kept.size <= max_nodes
    assert (kept.size == whole.size) == (max_nodes > whole.size)
    assert {3, 7} <= set(kept.episode.tolist())
    for episode in np.unique(kept.episode):
        rows, theirs = np.flatnonzero(whole.episode == episode), np.flatnonzero(kept.episode == episode)
        assert kept.slot[theirs].tolist() == whole.slot[rows].tolist()
        for name in ("embedding", "h", "xi", "idx_next", "delta_mem", "beta"):
            np.testing.assert_array_equal(getattr(kept, name)[theirs], getattr(whole, name)[rows])
        embedding = find_embedding(there, kept.id, "dcae", seed=0)
        assert embedding is not None
        np.testing.assert_array_equal(embedding.coordinates[theirs], fitted[rows])
    assert find_projection(there, kept.id, "pca", {"seed": 0}) is None, "a layout is of all nodes and is drawn again"
    with pytest.raises(DataRemovedError, match=r"\b4\b"):
        get_trajectory(there, run_id, 4)
    shown = get_node(there, kept, int(kept.slot[kept.episode == 3][0]))
    np.testing.assert_array_equal(shown.trajectory.state, get_trajectory(db, run_id, 3).state)
