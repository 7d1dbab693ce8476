"""Pages mark an imported run as imported and offer nothing that it cannot do."""

from pathlib import Path

import pytest

from app.cli.main import run
from storage.engine import Database
from storage.queries.runs import list_runs
from tests.pages.test_pages import open_page, said

CSV = "env,algo,map,seed,step,win_rate\nskirmish,vdn,3m,4,0,0\nskirmish,vdn,3m,4,1000,0.5\n"


@pytest.fixture
def imported(empty: Database, tmp_path: Path) -> str:
    (tmp_path / "r.csv").write_text(CSV)
    assert run(["import", str(tmp_path / "r.csv"), "--format", "csv", "--db", empty.url]) == 0
    return list_runs(empty)["id"].iloc[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run", "imported as csv from r.csv"),
        ("live", "imported (csv)"),
        ("memory", "Memory"),
        ("replay", "Replay"),
        ("home", "EMTC Lab"),
        ("compare", "Evaluated runs that match: 1"),
    ],
)
def test_a_page_marks_an_imported_run_and_offers_no_clone(imported: str, name: str, words: str) -> None:
    page = open_page(name, run=imported)
    assert not page.exception
    assert not page.error
    assert words in said(page).replace("\\", "")
    assert "emtc train" not in "".join(str(block.value) for block in page.code)
    assert all(button.disabled for button in page.button if button.key in ("clone_run", "duplicate_run"))
    if name == "home":
        assert page.dataframe[0].value["status"].tolist() == ["⇣ imported"]
        assert page.dataframe[0].value["algo"].tolist() == ["vdn"]
