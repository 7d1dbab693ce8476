"""Another embedder fitted to a stored snapshot: its states, its map, its job."""

import numpy as np
import pytest

from app.analysis.collapse import measure_collapse
from app.analysis.curves import read_curves, read_tables
from app.analysis.measures import compute_return_r2, measure_runs
from app.analysis.projections.embedders import embed_snapshot, read_states
from app.analysis.projections.snapshots import make_projection_params, project_snapshot
from app.cli.main import run
from app.jobs.projection_process import fit_embedder
from app.jobs.projections import run_job
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.projections import create_job, get_job
from storage.queries.memory import get_node, get_snapshot, list_snapshots
from storage.queries.projections import find_embedding, find_projection
from storage.runs.rows import find_run
from tests.errors import raises
from tests.pages.seed import seed_run


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory):
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('embedders') / 'x.db'}")
    run_id = seed_run(db)
    yield db, int(list_snapshots(db, run_id)["id"].iloc[-1])
    db.dispose()


def test_states_are_those_of_the_nodes(seeded: tuple[Database, int]) -> None:
    db, snapshot_id = seeded
    snapshot = get_snapshot(db, snapshot_id)
    rows = np.random.default_rng(0).permutation(snapshot.size)[:20]
    states = read_states(db, snapshot, rows)
    for row, state in zip(rows, states, strict=True):
        assert np.array_equal(state, get_node(db, get_snapshot(db, snapshot_id), int(snapshot.slot[row])).state)


def test_an_embedder_is_fitted_once_for_a_seed(seeded: tuple[Database, int]) -> None:
    db, snapshot_id = seeded
    kind = "tcse"
    parts: list[float] = []
    first = embed_snapshot(db, snapshot_id, kind=kind, seed=3, progress=parts.append)
    assert first.coordinates.shape == (get_snapshot(db, snapshot_id).size, 4)
    assert np.isfinite(first.coordinates).all()
    assert parts == sorted(parts)
    assert parts[-1] == 1
    assert embed_snapshot(db, snapshot_id, kind=kind, seed=3).id == first.id
    found = find_embedding(db, snapshot_id, kind, seed=3)
    assert found is not None
    assert found.coordinates.tobytes() == first.coordinates.tobytes()
    assert find_embedding(db, snapshot_id, kind, seed=4) is None


def test_a_job_fits_the_embedder_and_draws_its_map(seeded: tuple[Database, int]) -> None:
    db, snapshot_id = seeded
    params = make_projection_params("umap", n=50, seed=0, embedder="random")
    job = create_job(db, snapshot_id, method="umap", params=params)
    run_job(db, job.id, fit_embedder=fit_embedder)
    assert get_job(db, job.id).status == "finished"
    theirs = find_projection(db, snapshot_id, "umap", params)
    assert theirs is not None
    own = project_snapshot(db, snapshot_id, method="umap", n=50)
    assert own.id != theirs.id
    assert project_snapshot(db, snapshot_id, method="umap", n=50, embedder="random").id == theirs.id


def test_a_study_reads_how_well_each_embedder_tells_returns(seeded: tuple[Database, int]) -> None:
    db, snapshot_id = seeded
    snapshot = get_snapshot(db, snapshot_id)
    row = find_run(db, snapshot.run_id)
    memory = row.config["memory"]
    assert "tcse" not in compute_return_r2(db, row)
    for kind in ("tcse", "dcae", "random"):
        command = ["project", row.id, "--method", "pca", "--embedder", kind, "--db", f"sqlite:///{db.path}"]
        assert run(command) == 0
    told = compute_return_r2(db, row)
    assert set(told) == {"own", "tcse", "dcae", "random"}
    assert len(set(told.values())) == 4
    found = find_embedding(db, snapshot_id, "dcae", seed=0)
    assert found is not None
    by_hand = measure_collapse(
        snapshot, delta=memory["delta"], delta_space=memory["delta_space"], embedding=found.coordinates
    )
    assert told["dcae"] == by_hand["h_r2_knn"].value
    measured = measure_runs(db, [row], read_curves(read_tables(db, [row]), "win_rate"))
    assert measured["r2_dcae"] == {row.id: told["tcse"] - told["dcae"]}
    assert measured["r2_random"] == {row.id: told["tcse"] - told["random"]}


def test_a_map_of_an_embedder_that_is_unknown_or_was_not_fitted_is_refused(seeded: tuple[Database, int]) -> None:
    db, snapshot_id = seeded
    for embedder in ("dcae", "magic"):
        with raises(ConfigError, key="embedder", value=embedder):
            project_snapshot(db, snapshot_id, method="pca", n=50, seed=77, embedder=embedder)
