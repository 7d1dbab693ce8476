"""Queries against rows written by hand, on both databases."""

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import insert

from emtc_core.errors import StorageError
from storage.engine import Database
from storage.models import EpisodeRow, MetricRow
from storage.projections import create_job, get_job, list_jobs, save_projection, update_job
from storage.queries import curves, episodes, gate, memory, projections
from storage.queries.episode_search import find_playbacks
from storage.recording.writer import DatabaseRecorder
from tests.storage.records import (
    make_episode,
    make_evaluation,
    make_gate_stats,
    make_snapshot,
    record_episodes,
    record_everything,
)


def test_evaluations_come_in_order_and_after_a_step(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    for step, wins in ((30, 3), (10, 1), (20, 2)):
        recorder.record_evaluation(make_evaluation(step, wins=wins))
    recorder.close()
    frame = curves.evaluations(db, run_id)
    assert frame["env_step"].tolist() == [10, 20, 30]
    assert frame["win_rate"].tolist() == [0.25, 0.5, 0.75]
    assert frame["return_std"].tolist() == pytest.approx([np.std([0, 1, 2, 3])] * 3)
    assert frame["length_mean"].tolist() == [12.0] * 3
    assert curves.evaluations(db, run_id, after=10)["env_step"].tolist() == [20, 30]


QUERIES: dict[str, Callable[[Database, str], pd.DataFrame]] = {
    "evaluations": curves.evaluations,
    "metric_points": lambda db, run_id: curves.metric_points(db, run_id, ["train/loss"]),
    "gate_stats": gate.gate_stats,
    "find_playbacks": lambda db, run_id: find_playbacks(db, run_id).frame,
    "list_episodes": episodes.list_episodes,
    "list_snapshots": memory.list_snapshots,
    "evaluation_curves": lambda db, run_id: curves.evaluation_curves(db, [run_id]),
    "metric_curves": lambda db, run_id: curves.metric_curves(db, [run_id], "train/loss"),
}


@pytest.mark.parametrize("query", QUERIES)
def test_an_empty_answer_has_the_types_of_a_full_one(db: Database, run_id: str, query: str) -> None:
    empty = QUERIES[query](db, run_id)
    record_everything(db, run_id)
    full = QUERIES[query](db, run_id)
    assert empty.empty
    assert not full.empty
    assert dict(empty.dtypes) == dict(full.dtypes)


STEPS = np.arange(1, 5001)
CURVES = {
    "a curve with two spikes": np.where(STEPS == 1235, 7.0, np.where(STEPS == 4322, -7.0, np.sin(STEPS / 50))),
    "a constant": np.full(5000, 0.6),
    "two values": (STEPS % 2).astype(float),
}


@pytest.mark.parametrize("curve", CURVES)
def test_a_long_curve_is_thinned_but_keeps_ends_and_extremes(db: Database, run_id: str, curve: str) -> None:
    values = CURVES[curve]
    rows = [
        {"run_id": run_id, "env_step": step, "name": name, "value": value}
        for step, value in zip(STEPS.tolist(), values.tolist(), strict=True)
        for name in (["train/loss", "train/grad_norm"] if step == 5000 else ["train/loss"])
    ]
    with db.transaction() as connection:
        connection.execute(insert(MetricRow), rows)
    frame = curves.metric_points(db, run_id, ["train/loss", "train/grad_norm"], points=100)
    assert frame[frame["name"] == "train/grad_norm"]["value"].tolist() == [values[-1]]
    frame = frame[frame["name"] == "train/loss"]
    assert 49 <= len(frame) <= 100
    assert frame["env_step"].is_monotonic_increasing
    assert frame["env_step"].is_unique
    assert {1, 5000} <= set(frame["env_step"])
    assert (frame["value"].min(), frame["value"].max()) == (values.min(), values.max())
    assert set(frame["n"]) == {5000}
    assert (frame["value"] == values[frame["env_step"] - 1]).all()


def test_metrics_are_selected_by_name_and_step(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    for step in range(1, 21):
        recorder.record_metrics(step, {"train/loss": 1.0, "train/grad_norm": 2.0})
    recorder.close()
    frame = curves.metric_points(db, run_id, ["train/loss"], after=10)
    assert frame["env_step"].tolist() == list(range(11, 21))
    assert set(frame["name"]) == {"train/loss"}
    assert curves.metric_points(db, run_id, ["rollout/return"]).empty
    assert curves.metric_names(db, run_id) == ["train/grad_norm", "train/loss"]


def test_the_returns_of_a_run_that_goes_on_begin_as_they_were(db: Database, run_id: str) -> None:
    rows = [
        {"run_id": run_id, "episode": e, "first_env_step": 1 + 7 * (e - 1), "length": 7, "episode_return": float(e % 5)}
        | {"won": False, "epsilon": 0.5, "trajectory": b""}
        for e in range(1, 101)
    ]
    with db.transaction() as connection:
        connection.execute(insert(EpisodeRow), rows[:60])
    before = curves.training_returns(db, run_id, width=50)
    with db.transaction() as connection:
        connection.execute(insert(EpisodeRow), rows[60:])
    after = curves.training_returns(db, run_id, width=50)
    assert len(before) == 8
    pd.testing.assert_frame_equal(after.iloc[:8], before)
    first = [row["episode_return"] for row in rows if row["first_env_step"] < 50]
    assert (after["episode_return"].iloc[0], after["episodes"].iloc[0]) == (sum(first) / len(first), len(first))


def test_a_snapshot_is_read_sorted_by_slot_and_complete(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 3)
    record = make_snapshot(30, 3)
    recorder.record_snapshot(record)
    recorder.close()
    snapshot = memory.get_snapshot(db, int(memory.list_snapshots(db, run_id)["id"].iloc[0]))
    order = np.argsort(record.slot)
    for name in ("slot", "embedding", "h", "xi", "n_call", "n_xi", "t", "reward", "idx_next", "episode", "beta"):
        np.testing.assert_array_equal(getattr(snapshot, name), getattr(record, name)[order], err_msg=name)
    np.testing.assert_array_equal(snapshot.delta_mem, record.delta_mem[order])
    for row, state in zip(snapshot.state_rows, snapshot.state, strict=True):
        assert (state == snapshot.slot[row]).all(), "a stored state belongs to its row"
    assert snapshot.size == len(record.slot)
    assert snapshot.row_of(101) == int(np.flatnonzero(snapshot.slot == 101)[0])
    assert snapshot.row_of(99) is None


def test_a_snapshot_with_fewer_nodes_than_were_counted_is_a_sample(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 6)
    for step, size in ((20, 20), (50, 90), (60, 99)):
        recorder.record_gate_stats(replace(make_gate_stats(step), memory_size=size))
    for step, n in ((20, 2), (55, 3)):
        recorder.record_snapshot(make_snapshot(step, n))
    recorder.close()
    listed = memory.list_snapshots(db, run_id)
    assert listed["memory_size"].tolist() == [listed["size"].iloc[0], 90]
    whole, sample = (memory.get_snapshot(db, int(snapshot_id)) for snapshot_id in listed["id"])
    assert whole.whole is None
    assert sample.whole is not None
    assert (sample.whole.env_step, sample.whole.size, sample.whole.n_episodes) == (50, 90, 6)
    assert sample.whole.desirable_fraction == 0.5


def test_a_point_is_told_with_its_episode(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 3)
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.close()
    snapshot_id = int(memory.list_snapshots(db, run_id)["id"].iloc[0])
    point = memory.get_node(db, memory.get_snapshot(db, snapshot_id), 104)
    assert (point.slot, point.episode, point.t, point.env_step) == (104, 2, 4, 30)
    assert (point.h, point.xi, point.n_call, point.n_xi, point.idx_next) == (pytest.approx(1.04), True, 105, 2, 105)
    np.testing.assert_array_equal(point.state, make_episode(2, 11).state[4])
    assert point.trajectory.first_env_step == 11
    last = memory.get_node(db, memory.get_snapshot(db, snapshot_id), 110)
    assert (last.idx_next, last.delta_mem) == (None, None)
    for slot in (103, 99, 100_000):
        with pytest.raises(StorageError, match=str(slot)):
            memory.get_node(db, memory.get_snapshot(db, snapshot_id), slot)
    with pytest.raises(StorageError, match=r"\b999\b"):
        memory.get_snapshot(db, 999)


def test_playbacks_are_listed_and_read(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_evaluation(make_evaluation(10))
    recorder.record_evaluation(make_evaluation(20))
    recorder.close()
    assert find_playbacks(db, run_id).frame["env_step"].tolist() == [20, 10]
    playback = episodes.get_playback(db, run_id, 20, 0)
    kept = make_episode(99, 1)
    np.testing.assert_array_equal(playback.state, kept.state)
    assert (playback.length, playback.won, playback.slots, playback.beta) == (10, True, None, None)
    with pytest.raises(StorageError, match=r"\b1\b"):
        episodes.get_playback(db, run_id, 20, 1)
    with pytest.raises(StorageError, match=r"\b5\b"):
        episodes.get_trajectory(db, run_id, 5)


def test_a_projection_is_found_again_by_its_parameters(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.close()
    snapshot_id = int(memory.list_snapshots(db, run_id)["id"].iloc[0])
    snapshot = memory.get_snapshot(db, snapshot_id)
    coordinates = snapshot.embedding[:, :2]
    params = {"seed": 1, "perplexity": 30.0}
    save_projection(db, snapshot_id, method="tsne", params=params, coordinates=coordinates, seconds=2.5)
    found = projections.find_projection(db, snapshot_id, "tsne", {"perplexity": 30.0, "seed": 1})
    assert found is not None
    np.testing.assert_array_equal(found.coordinates, coordinates)
    assert projections.find_projection(db, snapshot_id, "tsne", {"seed": 2}) is None
    assert projections.find_projection(db, snapshot_id, "umap", params) is None
    with pytest.raises(StorageError, match=str(snapshot_id)):
        save_projection(db, snapshot_id, method="pca", params={}, coordinates=coordinates[1:], seconds=0)


def test_a_projection_job_is_made_once_and_its_death_is_seen(db: Database, run_id: str) -> None:
    recorder = DatabaseRecorder(db, run_id)
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.close()
    snapshot_id = int(memory.list_snapshots(db, run_id)["id"].iloc[0])
    job = create_job(db, snapshot_id, method="tsne", params={"seed": 1})
    assert create_job(db, snapshot_id, method="tsne", params={"seed": 1}).id == job.id
    update_job(db, job.id, status="running", progress=0.5, pid=os.getpid())
    assert (get_job(db, job.id).status, get_job(db, job.id).progress) == ("running", 0.5)
    update_job(db, job.id, pid=2**22 + 1)
    assert get_job(db, job.id).status == "lost"
    again = create_job(db, snapshot_id, method="tsne", params={"seed": 1})
    assert again.id != job.id
    update_job(db, again.id, status="cancelled")
    update_job(db, again.id, status="running")
    assert [row.status for row in list_jobs(db, snapshot_id)] == ["cancelled", "lost"]
