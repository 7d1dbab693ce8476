"""`emtc export | project | bundle`: files for a paper, read back."""

import re
from pathlib import Path

import pandas as pd
import pytest

from app.analysis.projections import snapshots
from app.cli.main import run
from app.figures.registry import FIGURES, TABLES
from storage.engine import open_database
from storage.queries.episode_search import find_playbacks
from tests.pages.seed import seed_run


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('export') / 'x.db'}"
    db = open_database(url)
    run_id = seed_run(db)
    db.dispose()
    return url, run_id


@pytest.mark.parametrize(
    ("figure", "format", "magic", "fragments"),
    [
        ("learning-curves --center iqm", "svg", "<?xml", ["run RUN: emtc-qplex on 3m, seed 1, config ", "(Wilson"]),
        ("learning-curves --center iqm", "png", "\x89PNG", ["run RUN: emtc-qplex on 3m, seed 1, config ", "(Wilson"]),
        ("learning-curves --center iqm", "html", "<!doctype html>", ["run RUN: emtc-qplex on 3m", "(Wilson"]),
        ("gate-dynamics", "pdf", "%PDF", []),  # its text is compressed
        ("memory-atlas --color xi", "svg", "<?xml", ["\N{GREEK SMALL LETTER XI}[yesorno]"]),
    ],
)
def test_an_image_has_the_format_of_its_name_and_its_runs_and_statistic(
    seeded, tmp_path: Path, figure: str, format: str, magic: str, fragments: list[str]
) -> None:
    url, run_id = seeded
    out = tmp_path / f"figure.{format}"
    assert run(["export", run_id[:5], "--figure", *figure.split(), "--out", str(out), "--db", url]) == 0
    content = out.read_bytes()
    assert content.startswith(magic.encode("latin-1"))
    text = content.decode(errors="replace")
    drawn = re.sub(r"<[^>]+>|\s", "", text.partition("</metadata>")[2])
    assert [part for part in fragments if part.replace("RUN", run_id) not in text + drawn] == []


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("export RUN", "--figure or --table"),
        ("export RUN --figure gate-dynamic --out x.svg", "must be one of performance-profile, learning-curves"),
        ("export RUN --figure gate-dynamics", "--out"),
        ("export RUN --figure gate-dynamics --out x.bmp", "bmp"),
        ("export RUN --figure gate-dynamics --out x.csv --set hue=1", "hue is not an option of the figure gate-dynam"),
        ("export --figure gate-dynamics --out x.svg", "Name at least one run"),
        ("export --figure learning-curves --map 9m --out x.csv", "No evaluated run is selected"),
        ("export RUN --figure what-if --out x.csv", "tau_factor, tau_fixed, delta_factor"),
        ("export RUN --figure learning-curves --center average --out x.svg", "must be one of mean, median, iqm"),
        ("export RUN --table losses", "must be one of comparisons, comparisons-by-rate, runs, win-rates"),
        ("export RUN --table win-rates --band wide", "must be one of std, se, ci"),
        ("export RUN --table win-rates --final best", "must be one of last-tenth, last (got 'best')"),
        ("export RUN --table transitions --final last", "would change nothing in a raw table"),
        ("export RUN --table runs", "all runs"),
        ("export --table episodes --where seed=99", "No evaluated run is selected"),
        ("export RUN --replay 2", "--out"),
        ("export RUN --replay 2 --out x.pdf", "must be one of html, gif, mp4, svg, png"),
        ("export RUN --replay two --out x.svg", "episode must be the number of an episode"),
        ("export RUN --replay 999 --out new/x.svg", "no episode 999"),
        ("export RUN --replay 2 --table runs", "either"),
        ("export RUN --beside 2 --figure learning-curves --out x.svg", "belong to --replay"),
        ("project RUN --method magic", "magic"),
        ("bundle --out s.emtc", "Give run ids or --where, or a sweep"),
        ("bundle RUN --sweep s --out s.emtc", "Give run ids or --where, or a sweep"),
        ("bundle RUN --thin --whole --out s.emtc", "one of --thin and --whole"),
        ("bundle RUN zzzz --out new/s.emtc", "not found"),
        ("bundle --sweep zz --out s.emtc", "No sweep starts with"),
        ("bundle RUN", "--out"),
        ("open none.emtc", "There is no bundle at none.emtc"),
        (f"open {__file__}", "is not a bundle of EMTC Lab"),
    ],
)
def test_unusable_arguments_write_nothing(
    seeded, tmp_path: Path, capsys, monkeypatch, words: str, fragment: str
) -> None:
    monkeypatch.chdir(tmp_path)
    url, run_id = seeded
    assert run([*words.replace("RUN", run_id).split(), "--db", url]) == 2
    assert fragment in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_projection_is_computed_once(seeded, capsys, monkeypatch) -> None:
    url, run_id = seeded
    computed, compute = [], snapshots._compute_coordinates
    monkeypatch.setattr(snapshots, "_compute_coordinates", lambda *args: computed.append(args) or compute(*args))
    printed = []
    for seed in (11, 11, 12):
        assert run(["project", run_id, "--method", "pca", "--seed", str(seed), "--db", url, "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    assert len(computed) == 2


def test_figures_of_many_runs_choose_their_runs_by_map_and_algorithm(seeded, tmp_path: Path) -> None:
    url, _ = seeded
    out = tmp_path / "f.csv"
    chosen = ["--map", "3m", "--algo", "emtc-qplex", "--algo", "qmix"]
    assert run(["export", "--figure", "baselines", *chosen, "--out", str(out), "--db", url]) == 0
    assert set(pd.read_csv(out)["series"]) == {"EMTC(QPLEX), τ = 1 (n = 1)"}


def test_tables_can_be_made_of_chosen_runs_with_a_chosen_statistic(seeded, capsysbinary) -> None:
    url, run_id = seeded
    for table in ("win-rates", "mu-w"):
        assert run(["export", run_id, "--table", table, "--center", "median", "--format", "latex", "--db", url]) == 0
        said = capsysbinary.readouterr().out.decode()
        assert "median with quartiles over seeds" in said
        assert r"EMTC(QPLEX), $\tau$ = 1 &" in said
        assert "All with preset = demo" in said


@pytest.mark.parametrize(("format", "magic"), [("html", b"<!doctype html>"), ("gif", b"GIF89a"), ("png", b"\x89PNG")])
def test_a_replay_is_written_in_every_format(seeded, tmp_path: Path, format: str, magic: bytes) -> None:
    url, run_id = seeded
    out = tmp_path / f"replay.{format}"
    options = [] if format == "gif" else ["--beside", "3", "--t", "1"]  # a GIF of one episode is drawn faster
    assert run(["export", run_id, "--replay", "2", *options, "--out", str(out), "--db", url]) == 0
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


def test_a_file_is_written_into_a_new_folder(seeded, tmp_path: Path) -> None:
    url, run_id = seeded
    for words in (["--figure", "gate-dynamics"], ["--table", "runs"], ["--table", "episodes"]):
        out = tmp_path / words[1] / "deep" / "x.csv"
        names = [] if words[1] == "runs" else [run_id]
        assert run(["export", *names, *words, "--out", str(out), "--db", url]) == 0
        assert out.is_file()


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
