"""One declaration in `storage.models.Run` adds a column to lists, searches, Home and bundles.

The test adds a column to a copy of `storage` and uses the copy in another process.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.models import SCHEMA_VERSION

ROOT = Path(__file__).resolve().parents[2]
DECLARATION = """    priority: Mapped[int | None] = column(
        doc="runs with a larger number matter more",
        info={USE: ColumnUse("Priority", search="priority", sort="priority", on_home=True)},
    )
"""
USE_OF_THE_COLUMN = """
import json, os, sys
from pathlib import Path

from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from app.ui.home.run_columns import SORT_LABELS, column_config
from storage import api
from storage.bundles.contents import THIN
from storage.bundles.import_bundle import import_bundle
from storage.bundles.write import write_bundle
from storage.engine import open_database
from storage.models import Run
from storage.queries.run_search import RunFilter, run_page
from storage.runs.changes import create_run, finish_run
from storage.runs.rows import find_run

folder, root = map(Path, sys.argv[1:])
os.environ |= {"EMTC_DB": f"sqlite:///{folder / 'own.db'}", "XDG_CACHE_HOME": str(folder / "cache")}
db = open_database(f"sqlite:///{folder / 'own.db'}")
config = {"env": {"name": "skirmish", "map": "3m"}, "algo": "qmix", "seed": 1}
ids = [create_run(db, config, target_steps=10, versions={}, name=name) for name in ("low", "high", "none")]
with db.transaction() as connection:
    for run_id, priority in zip(ids, (1, 5), strict=False):
        connection.execute(update(Run).where(Run.id == run_id).values(priority=priority))
for run_id in ids:
    finish_run(db, run_id, "stopped")
page = run_page(db, RunFilter(where=("priority>0",)), sort="-priority").frame
write_bundle(db, ids[1:2], folder / "study.emtc", THIN, made_by="test")
other = open_database(f"sqlite:///{folder / 'other.db'}")
(imported,) = import_bundle(other, folder / "study.emtc", cache=folder / "cache").new
with api.open_database(folder / "own.db") as opened:
    scripted = opened.runs("priority=5")["priority"].tolist()
app = AppTest.from_file(str(root / "app" / "Home.py"), default_timeout=120)
app.query_params["columns"] = "gate,priority,tags"
app.run()
(table,) = (table for table in app.dataframe if "priority" in table.value)
config = column_config([])["priority"]
print(json.dumps({
    "found": page["name"].tolist(),
    "listed": page["priority"].tolist(),
    "imported": find_run(other, imported).priority,
    "scripted": scripted,
    "on_home": table.value["priority"].fillna(0).tolist(),
    "order": list(table.proto.column_order),
    "label": config["label"],
    "type": config["type_config"]["type"],
    "tooltip": config["help"],
    "sort_label": SORT_LABELS["priority"],
}))
"""


def use_in_a_tree_where_it_is_declared(folder: Path) -> dict[str, object]:
    """What another process sees of the column."""
    shutil.copytree(ROOT / "storage", folder / "storage", ignore=shutil.ignore_patterns("__pycache__"))
    models = folder / "storage" / "models.py"
    text = models.read_text().replace(
        f"SCHEMA_VERSION: Final = {SCHEMA_VERSION}", f"SCHEMA_VERSION: Final = {SCHEMA_VERSION + 1}"
    )
    models.write_text(re.sub(r"(?=\n\n\nclass SweepRow)", f"\n{DECLARATION}".rstrip(), text, count=1))
    done = subprocess.run(
        [sys.executable, "-c", USE_OF_THE_COLUMN, str(folder), str(ROOT)],
        env={**os.environ, "EMTC_WARM_UP": "0", "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.ci
def test_one_declaration_adds_a_column_to_searches_bundles_the_python_interface_and_home(tmp_path: Path) -> None:
    assert use_in_a_tree_where_it_is_declared(tmp_path) == {
        "found": ["high", "low"],
        "listed": [5, 1],
        "imported": 5,
        "scripted": [5],
        "on_home": [0, 5, 1],
        "order": ["name", "gate", "priority", "tags"],
        "label": "Priority",
        "type": "number",
        "tooltip": "runs with a larger number matter more",
        "sort_label": "Priority",
    }
