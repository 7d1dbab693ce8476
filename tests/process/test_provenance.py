"""A run can be traced to the code that made it: commit, changes, modules from outside, what they replaced, machine."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from app.analysis.provenance import hash_core
from app.analysis.settings import add_code_settings, describe_code
from app.analysis.variants import group_variants, list_differences, list_run_code_warnings
from app.jobs.provenance import describe_process, merge_versions, read_checkout
from emtc_core.config.resolve import resolve
from emtc_core.config.train import EnvConfig
from storage.engine import open_database
from storage.runs.rows import RunRow, find_run
from tests.process.trainers import EMTC, FAST, environment

ROOT = Path(__file__).parents[2]
HER_GAME = """
from emtc_core.envs.pettingzoo_export import parallel_env
from emtc_core.learner.mixers import qmix

def make():
    return parallel_env("3m")

original_forward = qmix.VdnMixer.forward

def forward(self, inputs):
    return original_forward(self, inputs)

qmix.VdnMixer.forward = forward
"""


def train_hers(folder: Path) -> RunRow:
    """Train with a module of hers, in its folder."""
    (folder / "her_game.py").write_text(HER_GAME)
    command = [*EMTC, "train", "--env", "pettingzoo", "--map", "her_game:make", "--algo", "vdn", "--steps", "60"]
    sets = [part for text in (*FAST, "memory.success=flag") for part in ("--set", text)]
    url = f"sqlite:///{folder / 'x.db'}"
    done = subprocess.run(
        [*command, "--db", url, "--json", *sets],
        capture_output=True, text=True, check=False, cwd=folder, env={**environment(), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return find_run(open_database(url), json.loads(done.stdout.splitlines()[-1])["run_id"])


@pytest.mark.ci
def test_a_module_that_replaces_a_mixer_s_method_is_named_and_makes_a_variant_of_its_own(tmp_path: Path) -> None:
    run = train_hers(tmp_path)
    assert run.versions["source"] == hash_core()
    assert run.versions["torch"] == torch.__version__
    assert run.versions["hardware"]["cores"].endswith(" cores")
    assert list(run.versions["modules"]) == ["her_game"]
    assert run.versions["patched"] == ["emtc_core.learner.mixers.qmix.VdnMixer.forward by her_game"]
    assert "resumed" not in run.versions
    if (ROOT / ".git").exists():
        assert run.versions["commit"] == read_checkout(ROOT)[0]["commit"]
    plain = {name: value for name, value in run.versions.items() if name != "patched"}
    configs = {name: add_code_settings(run.config, each) for name, each in (("a", plain), ("b", run.versions))}
    names = {variant.run_ids: variant.name for variant in group_variants(configs)}
    assert names["b",] == f"{names['a',]}, patched by her_game"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_checkout_has_its_commit_and_the_uncommitted_changes(tmp_path: Path) -> None:
    place = tmp_path / "emtc_core" / "gate.py"
    place.parent.mkdir()
    git(tmp_path, "init", "-q")
    assert read_checkout(place.parent) == ({}, b""), "a package inside another repository has no commit"
    place.write_text("tau = 1\n")
    (tmp_path / "secrets.txt").write_text("a password")
    git(tmp_path, "add", "emtc_core")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert read_checkout(tmp_path) == ({"commit": commit, "dirty": False}, b"")
    place.write_text("tau = 2\n")
    (place.parent / "new.py").write_text("x = 1\n")
    state, diff = read_checkout(tmp_path)
    assert (state["commit"], state["dirty"]) == (commit, True)
    assert b"+tau = 2" in diff
    assert b"# not in git: emtc_core/new.py " in diff
    assert b"password" not in diff
    (place.parent / "new.py").write_text("x = 2\n")
    assert read_checkout(tmp_path)[0]["diff"] != state["diff"], "a new file counts with what it holds"
    place.write_text("x = 1\n" * 300_000)
    assert len(read_checkout(tmp_path)[1]) < (1 << 20) + 100


def test_nothing_of_the_environment_is_stored_but_names_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMTC_NOTIFY", "mailto://user:verysecret@host")
    monkeypatch.setenv("OTHER_VARIABLE", "verysecret_module")
    seen, _ = describe_process(EnvConfig(name="pettingzoo", map="json:loads"), device=torch.device("cpu"))
    assert "verysecret" not in json.dumps(seen)
    assert set(seen["modules"]) >= {"json"}


def test_other_code_after_a_resume_is_recorded_with_the_first() -> None:
    began = merge_versions({"emtc_lab": "1"}, {"source": "a", "torch": "2"}, env_step=0)
    assert began == {"emtc_lab": "1", "source": "a", "torch": "2"}
    assert merge_versions(began, {"emtc_lab": "1", "source": "a", "torch": "2"}, env_step=500) == began
    later = merge_versions(began, {"emtc_lab": "1", "source": "b", "torch": "2"}, env_step=500)
    assert later == {**began, "resumed": ["from env step 500: source b"]}
    assert describe_code(later)["Resumed with other code"] == "from env step 500: source b"


def test_seeds_of_one_group_that_differ_in_code_get_a_warning_and_a_row_of_differences() -> None:
    config = resolve(algo="vdn").model_dump(mode="json")
    versions = {"source": "aa", "commit": "1", "torch": "2.13.0"}
    runs = {
        "one": add_code_settings({**config, "seed": 1}, versions),
        "two": add_code_settings({**config, "seed": 2}, {**versions, "source": "bb", "commit": "2"}),
        "old": add_code_settings({**config, "seed": 3}, {}),
    }
    (variant,) = group_variants(runs)
    assert set(variant.run_ids) == set(runs), "one line, as before"
    assert list_run_code_warnings(runs) == (
        "The seeds of VDN on 3m were not trained by the same code: source aa and bb.",
    )
    frame = list_differences(runs, [variant]).set_index("setting")
    assert frame.loc["code.source", "VDN on 3m"] == "aa, bb, –"
    alike = {"one": runs["one"], "two": add_code_settings({**config, "seed": 2}, {**versions, "commit": "2"})}
    assert list_run_code_warnings(alike) == (), "a commit may differ by a page's text"
    assert list_run_code_warnings({}) == ()
