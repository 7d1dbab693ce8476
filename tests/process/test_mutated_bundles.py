"""A changed bundle is refused in one sentence, with one's own database as it was byte for byte, or it is harmless.

Each is taken in by `emtc open --import`. One that is taken must be listed, shown, checked and drawn like any other.
"""

import contextlib
import json
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.cli.main import MAX_ERROR_LENGTH
from app.figures.registry import FIGURES, draw_named
from emtc_core.errors import EmtcError
from storage.bundles.contents import WHOLE
from storage.bundles.write import write_bundle
from storage.engine import open_database
from storage.queries.runs import list_runs
from tests.mutants import Study, make_mutant
from tests.process.test_fuzz import CONTROL, OWN_FAULT, emtc
from tests.storage.test_bundles import MADE_BY, fill, make_bundle, study_of

TRAINED = Path(__file__).parents[1] / "assets" / "trained_0010.db"
SLOW = ("gate-readings",)
"""It judges a run's episodes anew, for ten seconds."""
DRAWN = sorted(FIGURES.keys() - set(SLOW))
OPTIONS = {"trajectory": {"episode": 1}, "what-if": {"tau": 0.5}}
IN_ONE_GO, FEW = 50, 4
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")  # zipfile's, of a member that is there twice


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A whole bundle of a run that was trained and one that was made up, in a sweep."""
    folder = tmp_path_factory.mktemp("sound")
    shutil.copy(TRAINED, folder / "x.db")
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


def check_mutants(study: Study, own: Path, seed: int, times: int, *, figures: int = len(DRAWN)) -> Counter[str]:
    """Take mutants into copies of one's own database; return how many were refused and how many taken.

    Of one that is taken so many figures are drawn, chosen at random.
    """
    rng, before, outcomes = random.Random(seed), own.read_bytes(), Counter[str]()
    place, copy = own.with_name("mutant.emtc"), own.with_name("copy.db")
    known = frozenset(ids_of(own))
    for number in range(times):
        what = f"seed {seed}, mutant {number}: {make_mutant(study, rng, place)}"
        shutil.copy(own, copy)
        code, out, err = emtc("open", str(place), "--import", "--db", f"sqlite:///{copy}")
        assert OWN_FAULT not in err, (what, err)
        if code == 0:
            check_harmless(copy, what, known, rng.sample(DRAWN, figures))
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


def check_harmless(copy: Path, what: str, known: frozenset[str] = frozenset(), figures: Sequence[str] = DRAWN) -> None:
    """List, show and check every run; draw those that came, each alone and all together."""
    url = f"sqlite:///{copy}"
    db = open_database(url, read_only=True)
    try:
        ids = list(list_runs(db)["id"])
        for command in (
            ["runs", "--db", url],
            *(["show", run_id, "--db", url] for run_id in ids),
            ["db", "check", url, "--json"],
        ):
            code, out, err = emtc(*command)
            assert code == 0 or is_only_a_name(command, out), (what, command, out, err)
            assert not CONTROL & set(out), (what, command)
        for name in figures:
            for asked in ([], *([run_id] for run_id in ids if run_id not in known)):
                with contextlib.suppress(EmtcError):  # a sentence: it does not apply to this run
                    draw(db, name, asked, what)
    finally:
        db.dispose()


def is_only_a_name(command: Sequence[str], out: str) -> bool:
    """Whether all that `emtc db check` has against a database are modules that nothing imports here."""
    if command[0] != "db":
        return False
    found = [each["what"] for each in json.loads(out)["findings"] if each["kind"] != "notice"]
    return all(each.endswith("is a module to import, which this machine does not allow.") for each in found)


def draw(db, name: str, asked: list[str], what: str) -> None:
    try:
        draw_named(db, name, asked, OPTIONS.get(name, {}))
    except EmtcError:
        raise
    except Exception as error:
        raise AssertionError(f"{what}: {name} of {asked} failed") from error


def test_the_sound_one_is_taken_and_drawn(study: Study, own: Path) -> None:
    make_bundle(own.with_name("sound.emtc"), study.content)
    code, _, err = emtc("open", str(own.with_name("sound.emtc")), "--import", "--db", f"sqlite:///{own}")
    assert code == 0, err
    check_harmless(own, "the sound one")


@pytest.mark.ci
@pytest.mark.parametrize("seed", [0, 1])
def test_a_mutated_bundle_is_refused_or_harmless(study: Study, own: Path, seed: int) -> None:
    assert check_mutants(study, own, seed, times=10, figures=FEW)["refused"]


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(4))
def test_every_figure_of_a_mutated_bundle_is_drawn(study: Study, own: Path, seed: int) -> None:
    assert check_mutants(study, own, seed, times=10)["refused"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 100 + 1000 // IN_ONE_GO))
def test_a_thousand_mutated_bundles_are_refused_or_harmless(
    study: Study, own: Path, seed: int, record_property
) -> None:
    outcomes = check_mutants(study, own, seed, times=IN_ONE_GO, figures=FEW)
    print(f"seed {seed}: {dict(outcomes)}")  # noqa: T201
    assert outcomes["refused"]
