"""Write the small database of the present schema that later versions must be able to open.

Run once per released schema: python -m tests.storage.make_asset tests/assets/schema_0013.db
"""

import shutil
import sqlite3
import sys
from contextlib import closing

from storage.engine import open_database
from storage.files import run_folder
from storage.projections import save_projection
from storage.queries.memory import get_snapshot, list_snapshots
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run
from tests.storage.records import CONFIG, make_evaluation, make_gate_stats, make_snapshot, record_episodes


def make_asset(path: str) -> None:
    db = open_database(f"sqlite:///{path}")
    run_id = create_run(db, CONFIG, target_steps=30, versions={"emtc-lab": "0.1.0"}, name="an old run")
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, 3)
    recorder.record_metrics(30, {"train/loss": 0.5})
    recorder.record_evaluation(make_evaluation(30))
    recorder.record_gate_stats(make_gate_stats(30))
    recorder.record_snapshot(make_snapshot(30, 3))
    recorder.close()
    snapshot = get_snapshot(db, int(list_snapshots(db, run_id)["id"].iloc[0]))
    save_projection(
        db, snapshot.id, method="pca", params={"seed": 1}, coordinates=snapshot.embedding[:, :2], seconds=0.1
    )
    shutil.rmtree(run_folder(db, run_id).parent)
    db.dispose()
    with closing(sqlite3.connect(path)) as connection:  # one file, without a log beside it
        connection.execute("PRAGMA journal_mode=DELETE")


if __name__ == "__main__":
    make_asset(sys.argv[1])
