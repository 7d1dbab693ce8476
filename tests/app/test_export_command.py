"""`emtc export | project`: files for a paper, read back."""

import re
from pathlib import Path

import pandas as pd
import pytest

from app.cli.main import run
from app.figures.registry import FIGURES, TABLES
from storage.engine import open_database
from storage.private_files import open_output
from storage.queries.episode_search import find_playbacks
from tests.pages.seed import seed_run

MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG", "html": b"<!doctype html>", "csv": b"panel"}


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('export') / 'x.db'}"
    db = open_database(url)
    run_id = seed_run(db)
    db.dispose()
    return url, run_id


@pytest.mark.parametrize(
    ("figure", "format"),
    [*(("gate-dynamics", format) for format in MAGIC), ("learning-curves", "svg"), ("mu-w", "svg")],
)
def test_a_figure_is_written_in_every_format(seeded, tmp_path: Path, figure: str, format: str) -> None:
    url, run_id = seeded
    out = tmp_path / f"figure.{format}"
    assert run(["export", run_id[:5], "--figure", figure, "--out", str(out), "--db", url]) == 0
    assert out.read_bytes().startswith(MAGIC[format])


def test_the_memory_atlas_names_what_its_colors_mean(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    out = tmp_path / "atlas.svg"
    assert run(["export", run_id, "--figure", "memory-atlas", "--color", "xi", "--out", str(out), "--db", url]) == 0
    text = re.sub(r"<[^>]+>|\s", "", out.read_text(encoding="utf-8").partition("</metadata>")[2])
    assert "ξ[yesorno]" in text


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--figure", "gate-dynamic", "--out", "x.svg"], "must be one of performance-profile, learning-curves"),
        (["--figure", "gate-dynamics"], "--out"),
        (["--figure", "gate-dynamics", "--out", "x.bmp"], "bmp"),
        (["--table", "losses"], "must be one of comparisons, comparisons-by-rate, runs, win-rates"),
        (["--figure", "learning-curves", "--center", "average", "--out", "x.svg"], "must be one of mean, median, iqm"),
        (["--table", "win-rates", "--band", "wide"], "must be one of std, se, ci"),
        (["--table", "win-rates", "--final", "best"], "must be one of last-tenth, last (got 'best')"),
        (["--table", "transitions", "--final", "last"], "would change nothing in a raw table"),
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


def test_images_carry_their_runs_and_their_statistic(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    for format in ("svg", "pdf", "png", "html"):
        out = tmp_path / f"curves.{format}"
        options = ["--figure", "learning-curves", "--center", "iqm", "--out", str(out), "--db", url]
        assert run(["export", run_id, *options]) == 0
        content = out.read_bytes()
        if format != "pdf":  # compressed there
            assert f"run {run_id}: emtc-qplex on 3m, seed 1, config ".encode() in content
            assert b"interquartile mean with 95 % interval (Wilson" in content


def test_figures_of_many_runs_choose_their_runs_by_map_and_algorithm(seeded, tmp_path: Path, capsys) -> None:
    url, _ = seeded
    out = tmp_path / "f.csv"
    chosen = ["--map", "3m", "--algo", "emtc-qplex", "--algo", "qmix"]
    assert run(["export", "--figure", "baselines", *chosen, "--out", str(out), "--db", url]) == 0
    assert set(pd.read_csv(out)["series"]) == {"EMTC(QPLEX), τ = 1 (n = 1)"}
    assert run(["export", "--figure", "learning-curves", "--map", "9m", "--out", str(out), "--db", url]) == 2
    assert "No evaluated run is selected" in capsys.readouterr().err


def test_a_figure_of_one_run_asks_for_it(seeded, tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "f.svg")
    assert run(["export", "--figure", "gate-dynamics", "--out", out, "--db", seeded[0]]) == 2
    assert "Name at least one run" in capsys.readouterr().err


def test_tables_can_be_made_of_chosen_runs_with_a_chosen_statistic(seeded, capsysbinary) -> None:
    url, run_id = seeded
    for table in ("win-rates", "mu-w"):
        assert run(["export", run_id, "--table", table, "--center", "median", "--format", "latex", "--db", url]) == 0
        said = capsysbinary.readouterr().out.decode()
        assert "median with quartiles over seeds" in said
        assert r"EMTC(QPLEX), $\tau$ = 1 &" in said
        assert "All with preset = demo" in said
    assert run(["export", run_id, "--table", "runs", "--db", url]) == 2


@pytest.mark.parametrize(
    ("format", "magic"), [("html", b"<!doctype html>"), ("gif", b"GIF89a"), ("svg", b"<?xml"), ("png", b"\x89PNG")]
)
def test_a_replay_is_written_in_every_format(seeded, tmp_path: Path, format: str, magic: bytes) -> None:
    url, run_id = seeded
    out = tmp_path / f"replay.{format}"
    few = ["--replay", "2"] if format == "gif" else ["--replay", "2", "--beside", "3", "--t", "1"]
    assert run(["export", run_id, *few, "--out", str(out), "--db", url]) == 0
    assert out.read_bytes().startswith(magic)


def test_a_playback_stands_beside_an_episode_of_another_run(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    db = open_database(url)
    other = seed_run(db, name="Another")
    step = find_playbacks(db, other).frame["env_step"].iloc[0]
    db.dispose()
    out = tmp_path / "both.svg"
    arguments = ["export", run_id, other, "--replay", "1", "--beside", f"{step}-0", "--out", str(out), "--db", url]
    assert run(arguments) == 0
    text = out.read_text(encoding="utf-8")
    assert f"Another ({other}): Evaluation at step {step}" in text


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["--replay", "2"], "--out"),
        (["--replay", "2", "--out", "x.pdf"], "must be one of html, gif, mp4, svg, png"),
        (["--replay", "two", "--out", "x.svg"], "episode must be the number of an episode"),
        (["--replay", "999", "--out", "x.svg"], "no episode 999"),
        (["--replay", "2", "--table", "runs"], "either"),
        (["--beside", "2", "--figure", "learning-curves", "--out", "x.svg"], "belong to --replay"),
    ],
)
def test_an_unusable_replay_writes_nothing(seeded, tmp_path: Path, capsys, monkeypatch, arguments, fragment) -> None:
    monkeypatch.chdir(tmp_path)
    url, run_id = seeded
    assert run(["export", run_id, *arguments, "--db", url]) == 2
    assert fragment in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_into_a_new_folder(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    for words in (["--figure", "gate-dynamics"], ["--table", "runs"], ["--table", "episodes"]):
        out = tmp_path / words[1] / "deep" / "x.csv"
        names = [] if words[1] == "runs" else [run_id]
        assert run(["export", *names, *words, "--out", str(out), "--db", url]) == 0
        assert out.is_file()


def test_a_failed_export_leaves_no_new_folder(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    out = tmp_path / "new" / "x.emtc"
    assert run(["bundle", run_id, run_id[:-1] + "?", "--out", str(out), "--db", url]) == 2
    with pytest.raises(ZeroDivisionError), open_output(out):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_all_figures_and_tables_are_listed_with_their_options(capsys) -> None:
    assert run(["export", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in (*FIGURES, *TABLES))
    assert "--set smooth" in listed


def test_a_condition_selects_the_runs_of_a_table(seeded, tmp_path: Path, capsysbinary) -> None:
    url, run_id = seeded
    command = ["export", "--table", "episodes", "--db", url, "--where"]
    assert run([*command, f"id={run_id}"]) == 0
    assert capsysbinary.readouterr().out.count(b"\n") > 1
    assert run([*command, "seed=99"]) == 2


def test_an_unknown_option_names_only_those_of_this_figure(seeded, tmp_path: Path, capsys) -> None:
    url, run_id = seeded
    command = ["export", run_id, "--figure", "gate-dynamics", "--out", str(tmp_path / "x.csv"), "--db", url]
    assert run([*command, "--set", "hue=1"]) == 2
    err = capsys.readouterr().err
    assert "hue" in err
    assert "episodes" not in err
