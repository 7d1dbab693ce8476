"""Sweep files: what they may say, the sentences about what they may not, and the runs that follow."""

import json
import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.main import run as run_command
from app.jobs.sweeps.control import create_sweep, estimate_cost
from app.jobs.sweeps.file import change_settings, find_sweep_file, list_templates, parse_sweep, write_sweep_file
from app.jobs.sweeps.plan import _list_cells, convert_to_setting_type, count_runs, make_plan, parse_seeds
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.runs.sweeps import get_sweep, sweep_runs
from tests.errors import faults_of, raises

HEAD = 'name = "x"\nseeds = 2\nsteps = 300\n'


def plan(text: str):
    return make_plan(parse_sweep(HEAD + text))


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ('name = "x"\nsedes = 3', ["seeds", "sedes"], "seeds"),
        ("seeds = 1", "name", ""),
        ('name = "x"\nseeds = 0', "seeds", ""),
        ('name = "x"\nseeds = [1, 1]', "seeds", ""),
        (HEAD + "[grid]\nmemory.delta = 0.1", "memory.delta", ""),
        (HEAD + "[set]\nmemory.delta = [1]", "memory.delta", "[grid]"),
        (HEAD + "[set]\nseed = 1", "seed", ""),
        (HEAD + "[set]\nmemory.delta = 1\n[grid]\nmemory.delta = [1, 2]", "memory.delta", ""),
        (HEAD + "[random]\nsamples = 2\nranges.memory.delta = { low = 1, high = 0.1 }", "memory.delta", ""),
        (HEAD + "[grid]\nmemory.dleta = [1]", "memory.dleta", "memory.delta"),
        (HEAD + "[grid]\ngate.tau_start = [0.3]", "gate.tau_end", ""),
        (HEAD + 'algo = ["qmix", "foo"]', "algo", ""),
        (HEAD + '[[variant]]\nname = "a"\n[[variant]]\nname = "b"', "sweep file", ""),
        (HEAD + '[[variant]]\nname = "a"\n[[variant]]\nname = "a"', "variant", ""),
        (HEAD + "[grid]\nmemory.capacity = [" + ", ".join(map(str, range(2, 2600))) + "]", "number of runs", ""),
        ("name = ", "sweep file", ""),
        (HEAD + "x = " + "[" * 5000, "sweep file", ""),
        (HEAD + "[set]\nx" + ".x" * 3000 + " = 1", "configuration", ""),
        (HEAD + "steps_ = " + "9" * 5000, "sweep file", ""),
        (HEAD.replace("300", "9" * 30), "steps", ""),
        (HEAD + "[random]\nsamples = 2\nranges.memory.delta = { low = -1e308, high = 1e308 }", "memory.delta", ""),
        (
            HEAD + "[random]\nsamples = 2\nranges.memory.delta = { low = 1e-308, high = inf, log = true }",
            "memory.delta",
            "",
        ),
        (HEAD + "[grid]\nmemory.delta = [nan]", "memory.delta", ""),
        (HEAD + "".join(f"\n[set.a{i}]\nb = 1" for i in range(2000)), [f"a{i}.b" for i in range(10)] + [""], ""),
        (HEAD + "map = [" + '"3m",' * 100_000 + "]", "map", ""),
        (HEAD + "about = '" + "x" * (1 << 20) + "'", "sweep file", ""),
    ],
    ids=range(26),
)
def test_every_fault_is_found_by_its_key(text, key, hint):
    with raises(ConfigError, key=key) as fault:
        make_plan(parse_sweep(text))
    assert any(hint in each.hint for each in fault.value.faults)
    assert len(str(fault.value).splitlines()) == len(fault.value.faults)


def test_all_faults_are_told_together_and_once():
    with pytest.raises(ConfigError) as fault:
        plan("[grid]\nmemory.dleta = [1, 2]\nembed.lamda_cl = [1, 2]")
    assert [fault.key for fault in faults_of(fault.value)] == ["memory.dleta", "embed.lamda_cl"]


def test_a_plan_is_the_full_product_over_seeds_first_seeds_first():
    runs = plan('map = ["3m", "8m"]\n[grid]\nembed.lambda_rcon = [0.1, 0.2, 0.3]\nembed.p_mask = [0.1, 0.2]').runs
    assert len(runs) == 2 * 3 * 2 * 2
    assert [run.seed for run in runs] == [1] * 12 + [2] * 12
    points = {(run.config.env.map, run.config.embed.lambda_rcon, run.config.embed.p_mask, run.seed) for run in runs}
    assert len(points) == 24
    assert len({run.key for run in runs}) == 24
    assert runs[0].name == "x · 3m, lambda_rcon = 0.1, p_mask = 0.1 · seed 1"


def test_a_variant_brings_its_own_algorithm_and_settings():
    runs = plan(
        """
        [[variant]]
        name = "EMTC"
        [[variant]]
        name = "EMU"
        algo = "emu-qplex"
        [[variant]]
        name = "No-TCGM"
        set.gate.enabled = false
        """
    ).runs[:3]
    assert [(run.cell.variant, run.config.algo, run.config.gate.enabled) for run in runs] == [
        ("EMTC", "emtc-qplex", True),
        ("EMU", "emu-qplex", False),
        ("No-TCGM", "emtc-qplex", False),
    ]


def test_random_samples_lie_in_their_ranges_and_are_the_same_each_time():
    text = """
        [random]
        samples = 20
        ranges.memory.delta = { low = 1e-6, high = 1e-2, log = true }
        ranges.embed.type = ["dcae", "tcse"]
    """
    first, second = plan(text), plan(text)
    assert [run.config for run in first.runs] == [run.config for run in second.runs]
    deltas = [run.config.memory.delta for run in first.runs]
    assert all(1e-6 <= delta <= 1e-2 for delta in deltas)
    assert sum(delta < 1e-4 for delta in deltas) > 4
    assert {run.config.embed.type for run in first.runs} == {"dcae", "tcse"}


def test_the_same_file_is_the_same_sweep_and_more_seeds_extend_it():
    text = "[grid]\nmemory.delta = [0.1, 0.2]"
    first = plan(text)
    more = make_plan(parse_sweep(HEAD.replace("seeds = 2", "seeds = 3") + 'about = "words"\n' + text))
    other = make_plan(parse_sweep(HEAD.replace("steps = 300", "steps = 400") + text))
    assert more.id == first.id != other.id
    assert {run.key for run in first.runs} < {run.key for run in more.runs}


def test_some_seeds_of_a_plan_can_be_queued_before_the_others(tmp_path):
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    whole = make_plan(parse_sweep(HEAD.replace("seeds = 2", "seeds = [4, 5, 6, 9]") + 'algo = ["qmix", "vdn"]'))
    for text, seeds, queued in (("4-5", {4, 5}, 4), ("5,9", {5, 9}, 2)):
        assert create_sweep(db, whole, jobs=1, seeds=parse_seeds(text, whole)) == queued
        assert {run.seed for run in sweep_runs(db, whole.id)} >= seeds
    assert len(get_sweep(db, whole.id).plan["runs"]) == 8, "the stored plan stays whole"
    assert create_sweep(db, whole, jobs=1) == 2
    db.dispose()


@pytest.mark.parametrize("text", ["", "1-3", "4;5", "x", "4-", "4-99999999999", "-4"])
def test_seeds_that_the_file_does_not_have_are_refused(text):
    whole = make_plan(parse_sweep(HEAD.replace("seeds = 2", "seeds = [4, 5]")))
    with pytest.raises(ConfigError):
        parse_seeds(text, whole)


def test_a_grid_cannot_vary_the_algorithm():
    with raises(ConfigError, key="algo"):
        plan('[grid]\nalgo = ["qmix", "vdn"]\nenv.name = ["skirmish", "grf"]')


def test_settings_of_the_command_line_replace_those_of_the_file():
    file = parse_sweep(HEAD + "[set]\ntrain.lr = 0.1\ntrain.updates_per_episode = 2\n[grid]\nmemory.delta = [0.1, 0.2]")
    settings = ["train.lr=0.2", "algo=vdn", "preset=demo", "train.updates_per_episode=3", "train.batch=9"]
    changed = make_plan(change_settings(file, settings, steps=20_000))
    assert (changed.file.steps, changed.file.algo, changed.file.preset) == (20_000, ("vdn",), "demo")
    for train in (run.config.train for run in changed.runs):
        assert (train.lr, train.updates_per_episode, train.batch) == (0.2, 3, 9)
    assert change_settings(file) == file
    assert changed.id != make_plan(file).id


@pytest.mark.parametrize(
    ("settings", "key"), [("memory.delta=0.3", "memory.delta"), ("seed=3", "seed"), ("x.y=1", "x.y")]
)
def test_the_command_line_cannot_change_what_varies(settings, key):
    file = parse_sweep(HEAD + "[grid]\nmemory.delta = [0.1, 0.2]")
    with raises(ConfigError, key=key):
        make_plan(change_settings(file, [settings]))


@pytest.mark.parametrize("text", ["20k", "0.02M", "2e4"])
def test_the_number_of_steps_is_read_as_people_write_it(tmp_path, capsys, text):
    db = ["--db", f"sqlite:///{tmp_path / 'x.db'}"]
    assert run_command(["sweep", "tau-study-demo", "--steps", text, "--dry-run", "--json", *db]) == 0
    assert {run["steps"] for run in json.loads(capsys.readouterr().out)["runs"]} == {20_000}
    assert run_command(["train", "--steps", text, "--seed", "-1", *db]) == 2
    assert "steps" not in capsys.readouterr().err, "only the seed is wrong"


def test_a_sweep_is_stopped_by_its_id(tmp_path, capsys):
    db = open_database(f"sqlite:///{tmp_path / 'x.db'}")
    made = plan("")
    create_sweep(db, made, jobs=1)
    assert run_command(["sweep", made.id[:5], "--stop", "--db", db.url]) == 0
    assert get_sweep(db, made.id).status == "stopped"
    assert run_command(["sweep", "zzz", "--stop", "--db", db.url]) == 2
    db.dispose()


def test_every_template_is_valid_and_asks_a_question():
    templates = list_templates()
    assert {name for name in templates if not name.endswith("-demo")} == {
        name.removesuffix("-demo") for name in templates
    }
    for name, file in templates.items():
        assert file.about, name
        runs = make_plan(file).runs
        if name.endswith("-demo"):
            assert file.map == ("3m",)
            assert sum(run.config.train.t_max for run in runs) <= 300_000


def test_the_augmentation_template_has_the_four_published_cells():
    cells = {
        (run.config.embed.p_mask, run.config.embed.sigma) for run in make_plan(list_templates()["augmentation"]).runs
    }
    assert cells == {(0.1, 0.05), (0.2, 0.05), (0.4, 0.05), (0.2, 0.1)}


def test_a_file_wins_over_a_template_of_its_name_and_a_missing_one_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_sweep_file("ablation-demo").study == "ablation"
    (tmp_path / "ablation-demo").write_text(HEAD)
    assert find_sweep_file("ablation-demo").name == "x"
    with raises(ConfigError, key="nowhere.toml"):
        find_sweep_file("nowhere.toml")


BOMBS = {
    "grid": "[grid]\n" + "\n".join(f"x.y{i} = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]" for i in range(9)),
    "grid of a long file": "[grid]\n" + "\n".join(f"x.y{i} = [1, 2]" for i in range(20_000)),
    "variants": "map = " + str([f"m{i}" for i in range(1000)]).replace("'", '"') + "\n"
    "[grid]\nx.y = " + str(list(range(1000))) + "\n"
    + "\n".join(f'[[variant]]\nname = "v{i}"' for i in range(1000)),
    "samples": "[grid]\nx.y = " + str(list(range(100_000))) + "\n"
    "[random]\nsamples = 10000\nranges.memory.delta = { low = 0.1, high = 1.0 }",
}  # fmt: skip


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_thousand_million_runs_are_counted_and_not_listed(text):
    file = parse_sweep(HEAD + text)
    tracemalloc.start()
    try:
        with raises(ConfigError, key="number of runs"):
            make_plan(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@settings(max_examples=40, deadline=None)
@given(
    n_maps=st.integers(1, 2),
    algos=st.sampled_from([["qmix"], ["qmix", "vdn"]]),
    variants=st.lists(st.sampled_from(["", 'algo = "qplex"']), max_size=3),
    grid=st.lists(st.integers(1, 3), max_size=2),
    samples=st.integers(0, 2),
)
def test_runs_are_counted_as_they_would_be_listed(n_maps, algos, variants, grid, samples):
    keys = ("train.lr", "train.hidden")
    text = HEAD + f"map = {['3m', '8m'][:n_maps]}\nalgo = {algos}\n"
    text += "[grid]\n" + "".join(
        f"{key} = {[0.1 / n for n in range(1, size + 1)] if key == 'train.lr' else list(range(8, 8 + size))}\n"
        for key, size in zip(keys, grid, strict=False)
    )
    text += "".join(f'[[variant]]\nname = "v{i}"\n{own}\n' for i, own in enumerate(variants))
    if samples:
        text += f"[random]\nsamples = {samples}\nranges.train.gamma = {{ low = 0.1, high = 0.9 }}\n"
    file = parse_sweep(text)
    assert count_runs(file) == len(list(_list_cells(file))) * len(file.seeds)


def test_a_plan_is_shared_by_as_many_trainers_as_it_has_runs():
    two = plan('map = "3m"\nalgo = "qmix"\n')
    assert len(two.runs) == 2
    alone, both, crowd = (estimate_cost(None, two, jobs=jobs)[0] for jobs in (1, 2, 100))
    assert alone == pytest.approx(2 * both)
    assert crowd == both


def test_the_guides_search_is_a_sweep_file():
    guide = (Path(__file__).parents[2] / "app" / "guide" / "sweeps.md").read_text()
    (text,) = (each for each in re.findall(r"```toml\n(.*?)```", guide, re.DOTALL) if "[optuna]" in each)
    found = make_plan(parse_sweep(text))
    assert [run.key for run in found.runs] == [f"{found.id}-trial-{n}" for n in range(12)]
    assert found.to_rows() == [], "Optuna chooses them one by one"
    more = make_plan(parse_sweep(text.replace("trials = 12", "trials = 20")))
    assert (more.id, len(more.runs)) == (found.id, 20)


def test_whole_numbers_of_a_search_stay_whole():
    space = "[optuna.space]\ntrain.batch = { low = 8, high = 32 }"
    found = parse_sweep(f'name = "x"\nseeds = 1\n[optuna]\ntrials = 1\n{space}')
    assert make_plan(found).runs
    assert convert_to_setting_type("train.batch", 8.0) == 8
    assert isinstance(convert_to_setting_type("train.batch", 8.0), int)
    assert isinstance(convert_to_setting_type("train.lr", 1.0), float)


RANDOM = """
name = "Random \\"samples\\""
map = ["3m", "8m"]
seeds = [3, 5]
[set]
gate.enabled = false
[[variant]]
name = "a"
algo = "emu-qplex"
[[variant]]
name = "b"
set = { embed.type = "dcae", memory.delta = 1e-05 }
[random]
samples = 3
[random.ranges]
train.lr = { low = 1e-5, high = 1e-2, log = true }
train.batch = [8, 16]
"""


@pytest.mark.parametrize("name", [*list_templates(), "random"])
def test_a_written_sweep_file_is_read_as_the_same_file(name):
    file = parse_sweep(RANDOM) if name == "random" else list_templates()[name]
    assert parse_sweep(write_sweep_file(file)) == file


def test_a_name_that_is_too_long_for_a_file_is_one_sentence(capsys) -> None:
    assert run_command(["sweep", "--dry-run", "9" * 5000]) == 2
    assert "Internal error" not in capsys.readouterr().err
