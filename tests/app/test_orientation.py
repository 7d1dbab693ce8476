"""The PCA of a run's snapshots stays the same way round while somebody steps through them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from app.analysis.projections import alignment
from app.analysis.projections.alignment import compute_aligned_pca, find_axis_signs, match_rows
from app.analysis.projections.linear import DEFAULT_SIGNS, compute_pca
from storage.blobs import pack
from storage.engine import Database, open_database
from storage.models import SnapshotRow
from storage.queries.memory import Snapshot, get_snapshot, list_snapshots
from tests.pages.seed import seed_run


@pytest.fixture
def two(tmp_path: Path, sqlite_template: Path) -> tuple[Database, Snapshot, Snapshot]:
    """Two snapshots; a refit between them turned the embedding of what they share upside down."""
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'x.db')}")
    run_id = seed_run(db)
    first, second = (get_snapshot(db, int(each)) for each in list_snapshots(db, run_id)["id"])
    rng = np.random.default_rng(4)
    stretched = (rng.normal(size=(first.size, 4)) * [5, 3, 0.5, 0.1]).astype(np.float32)
    write(db, first.id, stretched)
    before, after = match_rows(first, second)
    assert len(before) == first.size
    later = (rng.normal(size=(second.size, 4)) * [5, 3, 0.5, 0.1]).astype(np.float32)
    later[after] = -stretched[before]
    write(db, second.id, later)
    return db, get_snapshot(db, first.id), get_snapshot(db, second.id)


def write(db: Database, snapshot_id: int, embedding: np.ndarray) -> None:
    with db.transaction() as connection:
        blob = pack({"embedding": embedding})
        connection.execute(update(SnapshotRow).where(SnapshotRow.id == snapshot_id).values(embedding=blob))


def alike(first: Snapshot, second: Snapshot, places: list[np.ndarray]) -> list[float]:
    before, after = match_rows(first, second)
    return [float(np.corrcoef(places[0][before, axis], places[1][after, axis])[0, 1]) for axis in (0, 1)]


def test_the_signs_of_a_later_snapshot_are_changed_so_that_it_is_shown_as_the_one_before_it(two):
    db, first, second = two
    raw = [compute_pca(each.embedding) for each in (first, second)]
    assert max(alike(first, second, [each.coordinates for each in raw])) < -0.9, "without it the map turns over"
    shown = [compute_aligned_pca(db, each) for each in (first, second)]
    assert min(alike(first, second, [each.coordinates for each in shown])) > 0.9
    for drawn, plain in zip(shown, raw, strict=True):
        assert np.array_equal(np.abs(drawn.coordinates), np.abs(plain.coordinates))
        assert (drawn.x_label, drawn.y_label) == (plain.x_label, plain.y_label)
    known: dict = {}
    assert (find_axis_signs(db, first, known), find_axis_signs(db, second, known)) == (DEFAULT_SIGNS, (-1, -1))
    assert known == {first.id: DEFAULT_SIGNS, second.id: (-1, -1)}
    assert find_axis_signs(db, second) == (-1, -1), "without the signs of the earlier ones"


def test_beyond_the_limit_a_snapshot_follows_the_last_one_within(two, monkeypatch):
    db, first, second = two
    monkeypatch.setattr(alignment, "MAX_NODES", first.size)
    assert find_axis_signs(db, second) == (-1, -1)
    monkeypatch.setattr(alignment, "MAX_NODES", 0)
    assert find_axis_signs(db, second) == (-1, -1), "the first one is always there"


def test_snapshots_that_share_nothing_begin_anew(two):
    db, _, second = two
    with db.transaction() as connection:
        blob = pack({"episode": second.episode + 1000})
        connection.execute(update(SnapshotRow).where(SnapshotRow.id == second.id).values(episode=blob))
    assert find_axis_signs(db, get_snapshot(db, second.id)) == DEFAULT_SIGNS
