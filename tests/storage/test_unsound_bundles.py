"""A bundle whose rows no version of this program has written is refused before anything of it is kept or shown."""

import shutil
from pathlib import Path

import pytest

from emtc_core.errors import StorageError
from storage.bundles.contents import WHOLE
from storage.bundles.read import open_bundle
from storage.bundles.write import import_bundle, write_bundle
from storage.engine import open_database
from tests.storage.test_bundles import MADE_BY, fill, make_bundle, study_of, tampered

HARMS = {
    "every second transition": ("delete from transitions where env_step % 2 = 0", "transitions with env_step"),
    "shifted steps": ("update transitions set env_step = env_step + 1000000", "transitions with env_step"),
    "steps in another order": ("update transitions set t = 9 - t", "does not match its env_step"),
    "more steps than there are": ("update runs set env_steps = 9223372036854775807", "transitions with env_step"),
    "a gate that does not close": ("update transitions set beta = 1.0", "beta differs by"),
    "other sums": ("update transition_summary set delta_mem_sum = 99", "does not contain the sums"),
    "settings of other kinds": ('update runs set config = \'{"train": 3, "gate": "x"}\'', "run "),
    "settings that are none": ("update runs set config = json_set(config, '$.gate.tau_start', 'x')", "run "),
    "an import that has episodes": ("update runs set config = json_set(config, '$.imported', json('{}'))", "imported"),
    "a capacity without end": (
        "update runs set config = json_set(config, '$.memory', json('{\"capacity\": 1e999}'))",
        "memory.capacity = inf",
    ),
    "a section that is a word": ("update runs set config = json_set(config, '$.env', 'nan')", "which is not a section"),
    "a word for a setting": ("update runs set config = json_set(config, '$.memory.delta', 'x')", "of the wrong type"),
    "a row of no run": ("update evaluations set run_id = 'nobody'", "evaluations"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The database of a whole bundle of one run, without the host's secrets."""
    folder = tmp_path_factory.mktemp("sound")
    db = open_database(f"sqlite:///{folder / 'x.db'}")
    write_bundle(db, [fill(db)], folder / "study.emtc", WHOLE, made_by=MADE_BY)
    return study_of(folder / "study.emtc")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "own.db"
    db = open_database(f"sqlite:///{path}")
    fill(db)
    db.dispose()
    return path


@pytest.fixture
def own(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(filled, tmp_path / "own.db"))


def take(place: Path, own: Path, cache: Path) -> list[str]:
    db = open_database(f"sqlite:///{own}")
    try:
        return list(import_bundle(db, place, cache=cache).new)
    finally:
        db.dispose()


def test_a_sound_one_is_taken(sound: bytes, own: Path, tmp_path: Path) -> None:
    make_bundle(tmp_path / "s.emtc", sound)
    assert len(take(tmp_path / "s.emtc", own, tmp_path / "cache")) == 1


@pytest.mark.parametrize("harm", HARMS)
def test_what_no_version_has_written_is_refused_in_one_sentence(harm: str, sound: bytes, own: Path, tmp_path: Path):
    statements, words = HARMS[harm]
    place, cache = tmp_path / "s.emtc", tmp_path / "cache"
    make_bundle(place, tampered(sound, tmp_path, *statements.split("; ")))
    before = own.read_bytes()
    for act in (lambda: open_bundle(place, cache=cache), lambda: take(place, own, cache)):
        with pytest.raises(StorageError) as told:
            act()
        assert words in str(told.value)
        assert "\n" not in str(told.value)
        assert len(str(told.value)) < 500
    assert list(cache.iterdir()) == [], "something was kept of it"
    assert own.read_bytes() == before
