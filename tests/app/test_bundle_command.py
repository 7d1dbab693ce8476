"""`emtc bundle | open`: a file for a colleague shows the same figures, bit by bit, and cannot be written."""

import json
import sys
from pathlib import Path

import pytest

from app.cli.main import run
from app.figures import registry
from app.figures.render.plotly_view import to_plotly
from app.notebook.view import freeze
from emtc_core.errors import EmtcError
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import Database, open_database
from storage.runs.rows import find_run
from tests.pages.seed import seed_run


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, str]:
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('bundled') / 'x.db'}")
    return db, seed_run(db)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("--whole", {"gate-dynamics", "learning-curves", "memory-atlas", "strategy-divergence"}),
        ("--thin", {"gate-dynamics", "learning-curves"}),
    ],
)
def test_a_figure_of_a_bundle_is_that_of_its_database(seeded, tmp_path: Path, kind: str, expected: set[str]) -> None:
    db, run_id = seeded
    assert run(["bundle", run_id[:5], kind, "--out", str(tmp_path / "s.emtc"), "--db", db.url]) == 0
    bundle = open_database(cache_bundle(tmp_path / "s.emtc").url, read_only=True)
    drawn = []
    for name, figure in registry.FIGURES.items():
        try:
            copied = figure.make(bundle, [find_run(bundle, run_id)])
        except EmtcError:  # one run, or a thin bundle, has no data for this figure
            continue
        original = figure.make(db, [find_run(db, run_id)])
        assert json.dumps(freeze(copied)) == json.dumps(freeze(original)), name
        assert to_plotly(copied).to_json() == to_plotly(original).to_json(), name
        drawn.append(name)
    assert expected <= set(drawn)


def test_an_import_makes_the_run_one_s_own(seeded, tmp_path: Path, capsys) -> None:
    db, run_id = seeded
    out, own = str(tmp_path / "s.emtc"), f"sqlite:///{tmp_path / 'own.db'}"
    assert run(["bundle", run_id, "--whole", "--out", out, "--db", db.url]) == 0
    assert run(["open", out, "--import", "--db", own]) == 0
    assert f"Imported 1 run into {own}: {run_id}." in capsys.readouterr().err
    mine = open_database(own)
    assert find_run(mine, run_id).config == find_run(db, run_id).config
    assert run(["open", out, "--import", "--db", own]) == 0
    assert f"Already in the database and not changed: {run_id}." in capsys.readouterr().err


def test_the_app_is_started_on_it_and_may_only_read(seeded, tmp_path: Path, monkeypatch) -> None:
    db, run_id = seeded
    out = str(tmp_path / "s.emtc")
    assert run(["bundle", run_id, "--thin", "--out", out, "--db", db.url]) == 0
    started = {}

    def start(program, command, environment):
        started.update(command=command, url=environment["EMTC_DB"], read_only=environment["EMTC_READ_ONLY"])

    monkeypatch.setattr("app.cli.serve.os.execve", start)
    monkeypatch.chdir(tmp_path)
    assert run(["open", "s.emtc"]) == 0
    assert started["command"][:5] == [sys.executable, "-P", "-m", "streamlit", "run"]
    assert Path(started["command"][5]).is_file()
    assert started["read_only"] == "1"
    assert find_run(open_database(started["url"], read_only=True), run_id).name == "Seeded run"
