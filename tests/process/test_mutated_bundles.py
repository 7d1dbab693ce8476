"""A changed bundle is refused in one sentence, with one's own database as it was byte for byte, or it is harmless.

Each is taken in by `emtc open --import`. A run that is taken must be listed and shown like any other.
"""

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from app.cli.main import MAX_ERROR_LENGTH
from storage.bundles.contents import WHOLE
from storage.bundles.write import write_bundle
from storage.engine import open_database
from storage.queries.runs import list_runs
from tests.mutants import Study, make_mutant
from tests.process.test_fuzz import CONTROL, emtc
from tests.storage.test_bundles import MADE_BY, fill, make_bundle, study_of

IN_ONE_GO = 50
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's, of a member that is there twice


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A whole bundle of one run."""
    folder = tmp_path_factory.mktemp("sound")
    db = open_database(f"sqlite:///{folder / 'x.db'}")
    fill(db)
    write_bundle(db, list(list_runs(db)["id"]), folder / "study.emtc", WHOLE, made_by=MADE_BY)
    db.dispose()
    return Study(study_of(folder / "study.emtc"), folder)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "own.db"
    db = open_database(f"sqlite:///{path}")
    fill(db)
    db.dispose()
    return path


def ids_of(path: Path) -> list[str]:
    db = open_database(f"sqlite:///{path}", read_only=True)
    try:
        return list(list_runs(db)["id"])
    finally:
        db.dispose()


def check_mutants(study: Study, own: Path, seed: int, times: int) -> Counter[str]:
    """Take mutants into copies of one's own database; return how many were refused and how many taken."""
    rng, before, outcomes = random.Random(seed), own.read_bytes(), Counter[str]()
    place, copy = own.with_name("mutant.emtc"), own.with_name("copy.db")
    for number in range(times):
        what = f"seed {seed}, mutant {number}: {make_mutant(study, rng, place)}"
        shutil.copy(own, copy)
        code, out, err = emtc("open", str(place), "--import", "--db", f"sqlite:///{copy}")
        if code == 0:
            check_harmless(copy, what, frozenset(ids_of(own)))
        else:
            check_refused(copy, before, (code, out, err), what)
        outcomes["taken" if code == 0 else "refused"] += 1
        copy.unlink()
    return outcomes


def check_refused(copy: Path, before: bytes, told: tuple[int, str, str], what: str) -> None:
    code, out, err = told
    assert (code, out) == (2, ""), (what, told)
    assert len(err.strip().splitlines()) == 1, (what, err)
    assert 0 < len(err.strip()) <= MAX_ERROR_LENGTH
    assert not CONTROL & set(err), (what, err)
    assert copy.read_bytes() == before, what
    left = [file.name for file in copy.parent.rglob("*") if file.name.startswith((".opening", "copy.db-"))]
    assert left == [], what


def check_harmless(copy: Path, what: str, known: frozenset[str]) -> None:
    """List and show every run. The runs that were there before are still there."""
    url = f"sqlite:///{copy}"
    ids = ids_of(copy)
    assert known <= set(ids), what
    for command in (["runs", "--db", url], *(["show", run_id, "--db", url] for run_id in ids)):
        code, out, err = emtc(*command)
        assert code in (0, 1, 2), (what, command)
        assert "Traceback" not in err, (what, command, err)
        assert not CONTROL & set(out + err), (what, command)


def test_the_sound_one_is_taken_and_shown(study: Study, own: Path) -> None:
    make_bundle(own.with_name("sound.emtc"), study.content)
    code, _, err = emtc("open", str(own.with_name("sound.emtc")), "--import", "--db", f"sqlite:///{own}")
    assert code == 0, err
    check_harmless(own, "the sound one", frozenset())


@pytest.mark.ci
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mutated_bundle_is_refused_or_harmless(study: Study, own: Path, seed: int) -> None:
    assert check_mutants(study, own, seed, times=10)["refused"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 100 + 1000 // IN_ONE_GO))
def test_a_thousand_mutated_bundles_are_refused_or_harmless(
    study: Study, own: Path, seed: int, record_property
) -> None:
    outcomes = check_mutants(study, own, seed, times=IN_ONE_GO)
    print(f"seed {seed}: {dict(outcomes)}")  # noqa: T201
    assert outcomes["refused"]
