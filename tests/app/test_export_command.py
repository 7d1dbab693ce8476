"""`emtc export | project`: files for a paper, read back."""

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from app.cli.main import run
from app.figures.learning import align_seeds, draw_learning_curves
from app.tables import export_table
from storage.engine import open_database
from tests.pages.seed import seed_run

MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "html": b"<!doctype html>", "csv": b"panel"}


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('export') / 'x.db'}"
    db = open_database(url)
    run_id = seed_run(db)
    db.dispose()
    return url, run_id


@pytest.mark.parametrize("format", list(MAGIC))
@pytest.mark.parametrize("figure", ["gate-dynamics", "learning-curves"])
def test_a_figure_is_written_in_every_format(seeded, tmp_path: Path, figure: str, format: str) -> None:
    url, run_id = seeded
    out = tmp_path / f"figure.{format}"
    assert run(["export", run_id[:5], "--figure", figure, "--out", str(out), "--db", url]) == 0
    assert out.read_bytes().startswith(MAGIC[format])


def test_the_memory_atlas_names_what_its_colors_mean(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    out = tmp_path / "atlas.svg"
    assert run(["export", run_id, "--figure", "memory-atlas", "--color", "xi", "--out", str(out), "--db", url]) == 0
    assert "ξ [yes or no]" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--figure", "gate-dynamic", "--out", "x.svg"], "must be one of gate-dynamics"),
        (["--figure", "gate-dynamics"], "--out"),
        (["--figure", "gate-dynamics", "--out", "x.bmp"], "bmp"),
        (["--table", "losses"], "must be one of runs"),
        ([], "--figure or --table"),
    ],
)
def test_unusable_arguments_write_nothing(seeded, tmp_path: Path, capsys, monkeypatch, arguments, fragment) -> None:
    monkeypatch.chdir(tmp_path)
    url, run_id = seeded
    assert run(["export", run_id, *arguments, "--db", url]) == 2
    assert fragment in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_projection_is_stored_once_and_found_again(seeded, capsys) -> None:
    url, run_id = seeded
    answers = []
    for _ in range(2):
        assert run(["project", run_id, "--method", "pca", "--db", url, "--json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_seeds_are_aligned_before_they_are_averaged() -> None:
    first = pd.DataFrame({"env_step": [0, 10, 20], "win_rate": [0.0, 0.5, 1.0]})
    second = pd.DataFrame({"env_step": [0, 5, 15], "win_rate": [0.0, 0.0, 1.0]})
    steps, rates = align_seeds([first, second])
    assert steps.tolist() == [0, 5, 10, 15]
    np.testing.assert_allclose(rates, [[0, 0.25, 0.5, 0.75], [0, 0, 0.5, 1.0]])


def test_the_band_is_the_spread_over_seeds() -> None:
    frames = [pd.DataFrame({"env_step": [0, 10], "win_rate": [0.0, rate]}) for rate in (0.4, 0.8)]
    line = draw_learning_curves({"emtc-qplex on 3m": frames}).panels[0].lines[0]
    assert line.name == "emtc-qplex on 3m (n = 2)"
    assert line.low is not None
    np.testing.assert_allclose(line.y, [0.0, 0.6])
    np.testing.assert_allclose(line.y - line.low, [0.0, np.std([0.4, 0.8], ddof=1)])


def test_tables_say_the_same_in_every_format() -> None:
    frame = pd.DataFrame({"algo": ["emtc_qplex"], "3m": ["97.5 ± 1.0"], "8m": [None]})
    assert export_table(frame, "csv").decode() == "algo,3m,8m\nemtc_qplex,97.5 ± 1.0,\n"
    assert "| emtc_qplex | 97.5 ± 1.0 | – |" in export_table(frame, "markdown").decode()
    latex = export_table(frame, "latex").decode()
    assert r"emtc\_qplex & 97.5 $\pm$ 1.0 & -- \\" in latex
    assert latex.startswith(r"\begin{tabular}{lll}")
    pd.testing.assert_frame_equal(pd.read_parquet(io.BytesIO(export_table(frame, "parquet"))), frame)
