"""Pages say of an imported run that it was imported, and offer nothing that it cannot do."""

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


def test_the_run_page_says_so_and_offers_no_clone(imported: str) -> None:
    page = open_page("run", run=imported)
    text = said(page).replace("\\", "")
    assert "Imported (csv)" in text
    assert "imported as csv from r.csv" in text
    assert "Source of the method" not in text
    assert "emtc train" not in "".join(str(block.value) for block in page.code)
    assert page.button(key="clone_run").disabled


@pytest.mark.parametrize("name", ["live", "memory", "replay", "home", "compare"])
def test_every_page_opens_with_an_imported_run(imported: str, name: str) -> None:
    page = open_page(name, run=imported)
    assert not page.exception
    if name == "live":
        assert "imported (csv)" in said(page).replace("\\", "")
    if name == "home":
        assert "⇣ imported" in page.dataframe[0].value["status"].tolist()
        assert page.dataframe[0].value["algo"].tolist() == ["vdn"]
