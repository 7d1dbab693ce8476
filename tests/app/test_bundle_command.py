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

FIGURES = ("gate-dynamics", "learning-curves", "strategy-divergence")


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Database, str]:
    db = open_database(f"sqlite:///{tmp_path_factory.mktemp('bundled') / 'x.db'}")
    return db, seed_run(db)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def unpack(place: Path, capsys) -> str:
    capsys.readouterr()
    assert run(["open", str(place), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["database"]


def figures(url: str, run_id: str, folder: Path, names: tuple[str, ...] = FIGURES) -> dict[str, bytes]:
    folder.mkdir()
    for name in names:
        for format in ("csv", "svg"):
            out = folder / f"{name}.{format}"
            assert run(["export", run_id, "--figure", name, "--out", str(out), "--db", url]) == 0
    return {place.name: place.read_bytes() for place in folder.iterdir()}


@pytest.mark.ci
def test_the_figures_are_the_same_bit_by_bit(seeded, tmp_path: Path, capsys, monkeypatch) -> None:
    db, run_id = seeded
    assert run(["bundle", run_id[:5], "--whole", "--out", str(tmp_path / "s.emtc"), "--db", db.url]) == 0
    there = unpack(tmp_path / "s.emtc", capsys)
    before = figures(db.url, run_id, tmp_path / "before")
    monkeypatch.setenv("EMTC_READ_ONLY", "1")
    assert figures(there, run_id, tmp_path / "after") == before
    thin = tmp_path / "thin.emtc"
    monkeypatch.delenv("EMTC_READ_ONLY")
    assert run(["bundle", run_id, "--thin", "--out", str(thin), "--db", db.url, "--json"]) == 0
    assert thin.stat().st_size < (tmp_path / "s.emtc").stat().st_size
    curves = figures(unpack(thin, capsys), run_id, tmp_path / "thin", FIGURES[:1])
    assert curves == {name: content for name, content in before.items() if name in curves}


@pytest.mark.ci
def test_every_figure_of_a_whole_bundle_is_frozen_to_the_same_json(seeded, tmp_path: Path) -> None:
    db, run_id = seeded
    assert run(["bundle", run_id, "--whole", "--out", str(tmp_path / "s.emtc"), "--db", db.url]) == 0
    there = open_database(cache_bundle(tmp_path / "s.emtc").url, read_only=True)
    drawn = []
    for name, figure in registry.FIGURES.items():
        try:
            mine = figure.make(db, [find_run(db, run_id)])
        except EmtcError:  # one run does not make this figure
            continue
        theirs = figure.make(there, [find_run(there, run_id)])
        assert json.dumps(freeze(theirs)) == json.dumps(freeze(mine)), name
        assert to_plotly(theirs).to_json() == to_plotly(mine).to_json(), name
        drawn.append(name)
    assert {"gate-dynamics", "learning-curves", "memory-atlas", "strategy-divergence"} <= set(drawn)


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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bundle", "--out", "s.emtc"], "Give run ids or --where, or a sweep"),
        (["bundle", "RUN", "--sweep", "s", "--out", "s.emtc"], "Give run ids or --where, or a sweep"),
        (["bundle", "RUN", "--thin", "--whole", "--out", "s.emtc"], "one of --thin and --whole"),
        (["bundle", "zzzz", "--out", "s.emtc"], "not found"),
        (["bundle", "--sweep", "zz", "--out", "s.emtc"], "No sweep starts with"),
        (["bundle", "RUN"], "--out"),
        (["open", "none.emtc"], "There is no bundle at none.emtc"),
        (["open", "../x.db"], "is not a bundle of EMTC Lab"),
    ],
)
def test_unusable_arguments_write_nothing(seeded, tmp_path: Path, capsys, monkeypatch, arguments, words: str) -> None:
    db, run_id = seeded
    (tmp_path / "here").mkdir()
    (tmp_path / "x.db").write_bytes(b"no bundle" * 100)
    monkeypatch.chdir(tmp_path / "here")
    given = [run_id if each == "RUN" else each for each in arguments]
    assert run([*given, "--db", db.url]) == 2
    assert words in capsys.readouterr().err
    assert list((tmp_path / "here").iterdir()) == []
