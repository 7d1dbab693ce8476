"""Sweep files: what they may say, the sentences about what they may not, and the runs that follow."""

import re
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.cli.main import run as run_command
from app.jobs.sweeps.control import create_sweep, estimate_cost
from app.jobs.sweeps.file import change_settings, find_sweep_file, list_templates, parse_sweep, write_sweep_file
from app.jobs.sweeps.plan import convert_to_setting_type, count_runs, make_plan, parse_seeds
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.runs.sweeps import get_sweep, sweep_runs
from tests.errors import raises

HEAD = 'name = "x"\nseeds = 2\nsteps = 300\n'


def plan(text: str):
    return make_plan(parse_sweep(HEAD + text))


HUGE_GRID = "[grid]\n" + "\n".join(f"x.y{i} = [1, 2]" for i in range(20_000))
"""A product with 6,000 digits: it is counted up to a bound, and its runs are not listed."""
FAULTS = {
    "unknown key": ('name = "x"\nsedes = 3', ["seeds", "sedes"], "seeds"),
    "no name": ("seeds = 1", "name", ""),
    "no seed": ('name = "x"\nseeds = 0', "seeds", ""),
    "a seed twice": ('name = "x"\nseeds = [1, 1]', "seeds", ""),
    "grid without a list": (HEAD + "[grid]\nmemory.delta = 0.1", "memory.delta", ""),
    "list in set": (HEAD + "[set]\nmemory.delta = [1]", "memory.delta", "[grid]"),
    "seed in set": (HEAD + "[set]\nseed = 1", "seed", ""),
    "algorithm in grid": (HEAD + '[grid]\nalgo = ["qmix", "vdn"]\nenv.name = ["skirmish", "grf"]', "algo", ""),
    "two tables": (HEAD + "[set]\nmemory.delta = 1\n[grid]\nmemory.delta = [1, 2]", "memory.delta", ""),
    "range in wrong order": (
        HEAD + "[random]\nsamples = 2\nranges.memory.delta = { low = 1, high = 0.1 }", "memory.delta", ""
    ),
    "infinite range": (
        HEAD + "[random]\nsamples = 2\nranges.memory.delta = { low = -1e308, high = 1e308 }", "memory.delta", ""
    ),
    "unknown setting": (HEAD + "[grid]\nmemory.dleta = [1]", "memory.dleta", "memory.delta"),
    "two unknown settings": (
        HEAD + "[grid]\nmemory.dleta = [1, 2]\nembed.lamda_cl = [1, 2]", ["memory.dleta", "embed.lamda_cl"], ""
    ),
    "settings that contradict": (HEAD + "[grid]\ngate.tau_start = [0.3]", "gate.tau_end", ""),
    "not a number": (HEAD + "[grid]\nmemory.delta = [nan]", "memory.delta", ""),
    "unknown algorithm": (HEAD + 'algo = ["qmix", "foo"]', "algo", ""),
    "a run twice": (HEAD + '[[variant]]\nname = "a"\n[[variant]]\nname = "b"', "sweep file", ""),
    "a variant twice": (HEAD + '[[variant]]\nname = "a"\n[[variant]]\nname = "a"', "variant", ""),
    "too many runs": (HEAD + f"[grid]\nmemory.capacity = {list(range(2, 2600))}", "number of runs", ""),
    "a product of too many runs": (HEAD + HUGE_GRID, "number of runs", ""),
    "too many steps": (HEAD.replace("300", "9" * 30), "steps", ""),
    "no TOML": ("name = ", "sweep file", ""),
    "nested lists": (HEAD + "x = " + "[" * 5000, "sweep file", ""),
    "nested tables": (HEAD + "[set]\nx" + ".x" * 3000 + " = 1", "configuration", ""),
    "a number of 5000 digits": (HEAD + "steps_ = " + "9" * 5000, "sweep file", ""),
    "a file of one MB": (HEAD + "about = '" + "x" * (1 << 20) + "'", "sweep file", ""),
    "fifty unknown keys": (
        HEAD + "".join(f"x{i} = 1\n" for i in range(50)), [f"x{i}" for i in range(20)] + [""], ""
    ),
    "very many faults": (
        HEAD + "".join(f"\n[set.a{i}]\nb = 1" for i in range(2000)), [f"a{i}.b" for i in range(10)] + [""], ""
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "key", "hint"), FAULTS.values(), ids=FAULTS)
def test_every_fault_is_found_by_its_key(text, key, hint):
    with raises(ConfigError, key=key) as fault:
        make_plan(parse_sweep(text))
    assert any(hint in each.hint for each in fault.value.faults)
    assert len(str(fault.value).splitlines()) == len(fault.value.faults)


@settings(max_examples=25, deadline=None)
@given(
    maps=st.sampled_from([["3m"], ["3m", "8m"]]),
    algos=st.sampled_from([["qmix"], ["qmix", "vdn"]]),
    variants=st.lists(st.sampled_from([None, "qplex"]), max_size=2),
    rates=st.sampled_from([[0.1], [0.1, 0.01]]),
    widths=st.sampled_from([[8], [8, 16]]),
    samples=st.integers(1, 2),
)
def test_a_plan_has_every_combination_once_and_starts_with_the_first_seed(
    maps, algos, variants, rates, widths, samples
):
    text = f"{HEAD}map = {maps}\nalgo = {algos}\n[grid]\ntrain.lr = {rates}\ntrain.hidden = {widths}\n"
    for i, algo in enumerate(variants):
        text += f'[[variant]]\nname = "{i}"\nset.train.batch = {i + 7}\n' + (f'algo = "{algo}"\n' if algo else "")
    text += f"[random]\nsamples = {samples}\nranges.train.gamma = {{ low = 0.1, high = 0.9 }}\n"
    file = parse_sweep(text)
    runs = make_plan(file).runs
    named = [(algo, i + 7) for i, own in enumerate(variants) for algo in ([own] if own else algos)]
    combinations = product(maps, named or product(algos, [32]), rates, widths, (1, 2))
    found = [
        (run.config.env.map, (run.config.algo, run.config.train.batch), run.config.train.lr, run.config.train.hidden,
         run.seed)
        for run in runs
    ]  # fmt: skip
    assert Counter(found) == dict.fromkeys(combinations, samples)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    assert len({run.key for run in runs}) == len(runs) == count_runs(file)


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


def test_settings_of_the_command_line_replace_those_of_the_file():
    file = parse_sweep(HEAD + "[set]\ntrain.lr = 0.1\ntrain.updates_per_episode = 2\n[grid]\nmemory.delta = [0.1, 0.2]")
    settings = ["train.lr=0.2", "algo=vdn", "preset=demo", "train.updates_per_episode=3", "train.batch=9"]
    changed = make_plan(change_settings(file, settings, steps=20_000))
    assert (changed.file.steps, changed.file.algo, changed.file.preset) == (20_000, ("vdn",), "demo")
    for train in (run.config.train for run in changed.runs):
        assert (train.lr, train.updates_per_episode, train.batch) == (0.2, 3, 9)
    assert change_settings(file) == file
    assert changed.id != make_plan(file).id


VARIED = """
[grid]
memory.delta = [0.1, 0.2]
[[variant]]
name = "no gate"
set.gate.enabled = false
"""


@pytest.mark.parametrize(
    ("option", "word"),
    [
        *((f"--seeds={text}", "--seeds") for text in ("", "1-3", "4;5", "4-99999999999")),
        ("--set=memory.delta=0.3", "memory.delta"),
        ("--set=seed=3", "seed"),
        ("--set=gate.enabled=true", "gate.enabled"),
        ("--set=x.y=1", "x.y"),
    ],
)
def test_an_option_that_does_not_fit_the_file_is_refused(tmp_path, capsys, option, word):
    file = tmp_path / "s.toml"
    file.write_text(HEAD.replace("seeds = 2", "seeds = [4, 5]") + VARIED)
    assert run_command(["sweep", str(file), option, "--db", f"sqlite:///{tmp_path / 'x.db'}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith(word), err.count("\n")) == ("", True, 1)
    assert list(tmp_path.iterdir()) == [file]


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
    for name in ("nowhere.toml", "9" * 5000):  # the second is too long for a file's name
        with raises(ConfigError, key=name):
            find_sweep_file(name)


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


@pytest.mark.parametrize("name", ["ablation", "search-demo", "random"])
def test_a_written_sweep_file_is_read_as_the_same_file(name):
    file = parse_sweep(RANDOM) if name == "random" else list_templates()[name]
    assert parse_sweep(write_sweep_file(file)) == file
