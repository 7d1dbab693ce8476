"""Anything may be typed, and anything may stand in a database: one sentence and an exit code, never a traceback.

The bounded tests draw a few dozen inputs each; ten thousand are drawn by the slow one.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.engine import open_database
from storage.runs.changes import create_run
from tests.hostile import ACTS, tamper
from tests.process import trainers
from tests.storage.records import CONFIG, record_everything

OWN_FAULT = "Internal error ("
CONTROL = {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}


def emtc(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: exit code, stdout, stderr."""
    done = trainers.emtc(*arguments)
    return done.returncode, done.stdout, done.stderr


def refused_in_words(arguments: list[str]) -> str:
    """Run a command that must end in words of its own; return them."""
    err = answered_in_words(arguments)
    assert OWN_FAULT not in err, (arguments, err)
    return err


def answered_in_words(arguments: list[str]) -> str:
    """Run a command that must end with an exit code and a sentence, also for data that cannot be read."""
    code, out, err = emtc(*arguments)
    assert code in (0, 1, 2), arguments
    assert "Traceback" not in err, (arguments, err)
    assert not CONTROL & set(out + err), arguments
    if code == 2:
        assert 0 < len(err.strip()) < 6000
        assert out == ""
    return err


MONSTERS = [
    "9" * 20, "-1", "0", "1e999", "nan", "inf", "9" * 5000, "[" * 5000, "{", '"', "'", "\\", "\x1b[31m", "\u202e", "ä",
    "\udcff", "a" * 5000, "", " ", "../..", "/dev/zero", "/dev/null", "~nouser/x", "%00", "%s", "{0}", "$(id)", "--",
    "-", "None", "true", "1" * 4301, "0x10", "1_000", "٣", "a\nb", "a=b=c", "=", "k=", ".=1", "..=1", "train.=1",
]  # fmt: skip
words = st.one_of(st.sampled_from(MONSTERS), st.text(max_size=30).filter(lambda text: "\0" not in text))
urls = st.one_of(
    words.map(lambda word: f"sqlite:///{word}" if word.strip("/.") and "/dev" not in word else "sqlite://"),
    words.map(lambda word: f"postgresql://h:{word}/d"),
    st.sampled_from(["\x80", "a..b", "a" * 70]).map(lambda host: f"postgresql://{host}/d?connect_timeout=1"),
    words.map(lambda word: f"postgresql://u:secret@localhost:{word or 1}/d?connect_timeout=1"),
    words,
)
numbers = st.one_of(st.integers().map(str), words)
keys = st.sampled_from(["train.t_max", "gate.tau_end", "memory.delta", "env.map", "env.name", "algo", "preset", "seed"])
sets = st.one_of(words, st.tuples(keys, words).map("=".join), st.tuples(words, words).map("=".join))
BEFORE_ANYTHING = ["--algo", "no-such-algorithm"]
"""Ends a train command before it trains, whatever else it says."""

commands = st.one_of(
    st.tuples(st.sampled_from(["runs", "notebook"]), st.just("--db"), urls),
    st.tuples(st.sampled_from(["show", "stop", "pause", "resume"]), st.just("--"), words),
    st.tuples(st.just("db"), st.just("check"), st.just("--"), words),
    st.tuples(st.just("notebook"), st.just("export"), st.just("--out"), st.just("x.md"), st.just("--"), numbers),
    st.tuples(st.just("export"), st.just("--table"), words, st.just("--format"), words),
    st.tuples(st.just("export"), st.just("--figure"), words, st.just("--out"), words, st.just("--episodes"), numbers),
    st.tuples(st.just("project"), st.just("--points"), numbers, st.just("--snapshot"), words, st.just("x")),
    st.tuples(st.just("sweep"), st.just("--dry-run"), st.just("--"), words),
    st.tuples(st.just("sweep"), st.just("--jobs"), numbers, st.just("--dry-run"), st.just("--"), words),
    st.tuples(
        st.just("train"), st.just("--steps"), numbers, st.just("--seed"), numbers, *map(st.just, BEFORE_ANYTHING)
    ),
    st.tuples(st.just("train"), st.just("--set"), sets, *map(st.just, BEFORE_ANYTHING)),
    st.tuples(st.just("train"), st.just("--map"), words, st.just("--env"), words),
    st.tuples(st.just("train"), st.just("--config"), words, *map(st.just, BEFORE_ANYTHING)),
    st.tuples(words, words),
)

toml_words = st.one_of(numbers, st.sampled_from(["true", "1e308", "-1e308", "[1, 2]", "[]", "{}", '"3m"', "[[1]]"]))
toml_keys = st.sampled_from(
    ["name", "seeds", "steps", "env", "map", "algo", "preset", "study", "set.memory.delta", "grid.memory.delta",
     "grid.gate.tau_start", "random.samples", "random.ranges.memory.delta", "random.seed", "variant", "x", "set.seed"]
)  # fmt: skip
sweep_files = st.lists(st.tuples(toml_keys, toml_words), max_size=8).map(
    lambda pairs: 'name = "x"\nseeds = 2\n' + "".join(f"{key} = {value}\n" for key, value in pairs)
)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder as the current one, with a database that is not there."""
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("EMTC_DB", f"sqlite:///{tmp_path / 'none' / 'x.db'}")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    yield place
    assert [each.name for each in place.iterdir() if each.name != ".hypothesis"] == []
    assert not (tmp_path / "none").exists()


def draw_commands(n: int) -> None:
    @settings(max_examples=n, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(commands)
    def type_it(arguments: tuple[str, ...]) -> None:
        refused_in_words(list(arguments))

    type_it()


def draw_sweeps(n: int, file: Path) -> None:
    @settings(max_examples=n, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(sweep_files)
    def read_it(text: str) -> None:
        file.write_text(text, encoding="utf-8", errors="replace")
        refused_in_words(["sweep", "--dry-run", "--json", str(file)])

    read_it()


def test_a_hundred_random_commands_end_without_a_traceback(nowhere: Path) -> None:
    draw_commands(120)


def test_sixty_random_sweep_files_end_without_a_traceback(nowhere: Path, tmp_path: Path) -> None:
    draw_sweeps(60, tmp_path / "sweep.toml")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_ten_thousand_random_inputs_end_without_a_traceback(nowhere: Path, tmp_path: Path) -> None:
    draw_commands(8000)
    draw_sweeps(2000, tmp_path / "sweep.toml")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("original") / "emtc.db"
    db = open_database(f"sqlite:///{path}")
    run_id = create_run(db, CONFIG, target_steps=100, versions={})
    record_everything(db, run_id)
    db.dispose()
    return path, run_id


AT_ONCE = (
    "an id that climbs", "a module in the configuration", "an unknown environment", "a deep configuration",
    "a status of its own", "a name that commands the terminal", "two schemas", "words for numbers",
    "numbers beyond all", "missing tables",
)  # fmt: skip
"""One of each kind, and those that were once answered by a traceback; the others are tried by the slow run."""


@pytest.mark.parametrize("act", [pytest.param(act, marks=() if act in AT_ONCE else pytest.mark.slow) for act in ACTS])
def test_every_command_reads_a_hostile_database_without_a_traceback(
    original: tuple[Path, str], tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, run_id = Path(shutil.copy(original[0], tmp_path / "emtc.db")), original[1]
    victim = tmp_path / "victim"
    victim.mkdir()
    path.with_suffix(".files").mkdir()
    tamper(path, *ACTS[act])
    db = ("--db", f"sqlite:///{path}")
    out = ("--out", str(tmp_path / "out.svg"))
    for arguments in (
        ("runs", *db),
        ("runs", "--json", *db),
        ("show", run_id, *db),
        ("show", run_id, "--json", *db),
        ("sweep", "--list", *db),
        ("notebook", *db),
        ("export", "--table", "runs", *db),
        ("export", "--table", "win-rates", run_id, *db),
        ("export", "--figure", "learning-curves", run_id, *out, *db),
        ("export", "--figure", "gate-dynamics", run_id, *out, *db),
        ("export", "--figure", "memory-atlas", run_id, *out, *db),
        ("project", run_id, "--method", "pca", *db),
        ("db", "check", str(path)),
        ("stop", run_id, *db),
        ("resume", "--detach", "../../victim", *db),
        ("delete", "--yes", "../../victim", *db),
        ("delete", "--yes", run_id, *db),
    ):
        answered_in_words(list(arguments))
    assert victim.exists()
