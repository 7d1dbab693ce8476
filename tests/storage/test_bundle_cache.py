"""The shelf: bundles that are open beside one's own runs, and what taking them in would add."""

import shutil
from pathlib import Path

import pytest

from storage.bundles.bundle_cache import cache_bundle, clean_name, find_bundle, is_cached, list_bundles, remove_bundle
from storage.bundles.contents import THIN, WHOLE
from storage.bundles.import_bundle import import_bundle, import_runs, plan_import
from storage.bundles.write import write_bundle
from storage.engine import Database, open_database
from storage.queries.runs import list_runs
from storage.runs.labels import tag_runs
from storage.runs.rows import find_run
from tests.storage.test_bundles import MADE_BY, fill, rows

Theirs = tuple[Database, list[str], Path]


@pytest.fixture
def theirs(tmp_path: Path, sqlite_template: Path) -> Theirs:
    db = open_database(f"sqlite:///{shutil.copy(sqlite_template, tmp_path / 'theirs.db')}")
    ids = [fill(db), fill(db)]
    write_bundle(db, ids, tmp_path / "study.emtc", WHOLE, made_by=MADE_BY)
    return db, ids, tmp_path / "study.emtc"


def test_what_was_opened_is_listed_until_it_is_put_away(theirs: Theirs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert list_bundles(cache=cache) == []
    bundle = cache_bundle(theirs[2], cache=cache)
    assert list_bundles(cache=cache) == [bundle]
    assert find_bundle(bundle.key, cache=cache) == bundle
    assert find_bundle("../../x", cache=cache) is None
    assert (bundle.name, bundle.made_by, bundle.packed_bytes) == ("study.emtc", MADE_BY, theirs[2].stat().st_size)
    assert "every transition" in bundle.contents.describe()
    assert is_cached(bundle.url, cache=cache)
    assert not is_cached(theirs[0].url, cache=cache)
    remove_bundle(bundle)
    assert list_bundles(cache=cache) == []
    assert list(cache.iterdir()) == []
    assert theirs[2].is_file(), "the file itself stays"


def test_two_files_of_one_name_are_told_apart(theirs: Theirs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache_bundle(theirs[2], cache=cache)
    write_bundle(theirs[0], theirs[1][:1], tmp_path / "other.emtc", THIN, made_by=MADE_BY)
    second = cache_bundle(tmp_path / "other.emtc", name="study.emtc", cache=cache)
    names = {each.name for each in list_bundles(cache=cache)}
    assert len(names) == 2
    assert f"study.emtc ({second.key[:6]})" in names


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("study.emtc", "study.emtc"),
        ("/a/b/étude 2.emtc", "étude 2.emtc"),
        ("<img src=x onerror=alert(1)>.emtc", "_img src_x onerror_alert(1)_.emtc"),
        ("a\n`b`,c\u202e.emtc", "a__b__c_.emtc"),
        ("x" * 200 + ".emtc", "x" * 40 + "...emtc"),
        ("", "a bundle"),
    ],
)
def test_a_name_is_harmless_wherever_it_is_shown(name: str, shown: str) -> None:
    assert clean_name(name) == shown
    assert clean_name(shown) == shown


def test_a_bundle_that_is_opened_again_is_not_unpacked_again(theirs: Theirs, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = cache_bundle(theirs[2], cache=cache).study.stat()
    again = cache_bundle(theirs[2], name="renamed.emtc", cache=cache)
    assert (again.study.stat().st_ino, again.name) == (first.st_ino, "renamed.emtc")
    assert list_bundles(cache=cache) == [again]


def test_an_import_adds_the_missing_runs_that_its_plan_names_and_changes_no_other(
    db: Database, theirs: Theirs, tmp_path: Path
) -> None:
    source, (first, second), place = theirs
    write_bundle(source, [first], tmp_path / "first.emtc", WHOLE, made_by=MADE_BY)
    import_bundle(db, tmp_path / "first.emtc", cache=tmp_path / "cache")
    tag_runs(db, [first], add=["mine"])
    bundle = cache_bundle(place, cache=tmp_path / "cache")
    plan = plan_import(db, bundle)
    assert (plan.new, plan.existing, plan.rows["transitions"], plan.rows["episodes"]) == ((second,), (first,), 30, 3)
    assert str(plan).startswith("1 run: 30 transitions, 3 episodes")
    assert len(list_runs(db)) == 1
    assert import_runs(db, bundle.study, bundle.name).new == (second,)
    assert find_run(db, first).tags == ["from first.emtc", "mine"]
    assert find_run(db, second).tags == ["from study.emtc"]
    assert rows(db, "transitions", second) == rows(source, "transitions", second)
    again = plan_import(db, bundle)
    assert (again.new, set(again.existing)) == ((), {first, second})
    assert "all of its runs are already in this database" in str(again)
