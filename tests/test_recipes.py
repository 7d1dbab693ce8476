"""The guide's page Extending: its examples are applied to a copy of the project and used there.

The copy gets a setting, a mixer, a gate law, an environment, a page, a metric, an option and a column, and a run is
trained there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

import pytest

from app.figures import named
from app.figures.registry import FIGURES, TABLES
from app.navigation import PAGES

ROOT = Path(__file__).parent.parent
EXTENDING = "\n".join((ROOT / "app" / "guide" / f"{page}.md").read_text() for page in ("extending", "extending_app"))
SOURCE = ("app", "emtc_core", "pages", "storage")
COPIED = (*SOURCE, "tests", "pyproject.toml")
REFERS = (  # files that select from what exists, or compare it with published code
    "app/jobs/sweeps/templates/*",
    "emtc_core/config/presets/*",
    "app/ui/method/published*",
)


class Block(NamedTuple):
    """An example: a new file, or lines to add to an existing file."""

    kind: str
    path: str
    text: str


class Recipe(NamedTuple):
    """A section of the page.

    `changes` and `adds` are the numbers of files that its example changes and adds. `mentions` is a regular expression
    for a thing of this kind that exists: every file that mentions it must be named in the section.
    """

    heading: str
    changes: int
    adds: int
    mentions: str = ""


RECIPES = [
    Recipe("A complete example: a setting", changes=2, adds=0),
    Recipe("A mixer with two settings", changes=2, adds=1, mentions=r"\bvdn\b"),
    Recipe("A gate law with inverse", changes=1, adds=0, mentions=r"\bgaussian\b(?! noise)"),
    Recipe("An environment with its test", changes=1, adds=1, mentions=r"\bsmax\b"),
    Recipe(
        "A complete example: a page with a pinned view",
        changes=1,
        adds=1,
        mentions=r'pages/replay\.py|NavigationPage\("replay"',
    ),
    Recipe("A metric with its own Live chart", changes=2, adds=0, mentions="memory/evicted"),
    Recipe("A statistic on Compare, in the CLI and in a figure", changes=0, adds=1, mentions="performance-profile"),
    Recipe("An option of a figure, with its widget", changes=2, adds=0),
    Recipe("A column of runs, shown on Home and searchable", changes=1, adds=0),
]


def get_section(heading: str) -> str:
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", EXTENDING, re.MULTILINE | re.DOTALL)
    assert section, f"no page has a section {heading!r}"
    return section[1]


def list_blocks(heading: str) -> list[Block]:
    """List the examples of a section."""
    text = get_section(heading)
    return [Block(*parts) for parts in re.findall(r"^```(\w+)\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def apply(block: Block, root: Path) -> None:
    """Write the new file of a block, or replace the lines of each hunk; `@@` separates hunks."""
    file = root / block.path
    if block.kind == "python":
        assert not file.exists()
        file.write_text(block.text)
        return
    text = file.read_text()
    for hunk in block.text.removesuffix("\n").split("\n@@\n"):
        old, new = (
            "\n".join(line[1:] for line in hunk.splitlines() if not line.startswith(sign)) for sign in ("+", "-")
        )
        assert text.count(old) == 1, f"{block.path} must contain once:\n{old}"
        text = text.replace(old, new)
    file.write_text(text)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with all examples of the page."""
    root = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("*.emtc", "*.png", "assets")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, root / name, ignore=ignored if name == "tests" else shutil.ignore_patterns("*.emtc")
            )
        else:
            shutil.copy2(source, root / name)
    for recipe in RECIPES:
        for block in list_blocks(recipe.heading):
            apply(block, root)
    return root


def run_python(copy: Path, arguments: Sequence[str]) -> str:
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy), str(copy / "app" / "face")]),
        "EMTC_DB": f"sqlite:///{copy / 'lab.db'}",
        "XDG_CACHE_HOME": str(copy / "cache"),
        "OMP_NUM_THREADS": "1",
        "EMTC_WARM_UP": "0",
    }
    env.pop("EMTC_SKIPS", None)  # the number of skipped tests of the whole suite, not of this run
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


TRAINED = """
import json
import os
import numpy as np
from emtc_core.config.memory import GateConfig
from emtc_core.gate.gate import make_gate_law
from emtc_core.gate_laws import unknown_context
from sqlalchemy import update
from storage.engine import open_database
from storage.models import Run
from tests.process.trainers import emtc

def call(*arguments):
    done = emtc(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout

settings = (
    "incentive.ratio_power=2", "softmix.sharpness=2", "softmix.hidden=16", "gate.type=linear", "train.burn_in=4",
    "train.batch=4", "eval.episodes=2", "embed.interval=50", "embed.min_episodes=2",
)
options = [word for setting in settings for word in ("--set", setting)]
command = ("train", "--env", "climb", "--map", "3x3", "--algo", "emtc-softmix", "--steps", "120", "--json")
run_id = json.loads(call(*command, *options).splitlines()[-1])["run_id"]
chosen = ("--figure", "metrics", "--set", "metrics=rollout/same_action")
call("export", run_id, *chosen, "--format", "csv", "--out", "same.csv")
length = ("--figure", "metrics", "--set", "metrics=rollout/length")
call("export", run_id, *length, "--out", "length.svg")
call("export", run_id, *length, "--set", "from_zero=true", "--out", "length_from_zero.svg")
call("export", run_id, "--table", "half-times", "--out", "half_table.csv")
call("export", run_id, "--figure", "half-times", "--out", "half_figure.csv")
law, delta = make_gate_law(GateConfig(type="linear")), np.array([0.2, 0.5, 1.0])
beta = law.weigh(delta, 0.8, unknown_context(delta.shape))
with open_database(os.environ["EMTC_DB"]).transaction() as connection:
    connection.execute(update(Run).values(priority=3))
print(json.dumps({
    "run": json.loads(call("show", run_id, "--json")),
    "gate": json.loads(call("sql", "select delta_mem, beta, tau from transitions where delta_mem > 0", "--json")),
    "inverse": law.temperature_for(beta, delta).tolist(),
    "listed": json.loads(call("runs", "--where", "priority>2", "--sort", "-priority", "--json")),
}))
"""


@pytest.fixture(scope="module")
def trained(copy: Path) -> dict[str, Any]:
    """A run with the new setting, mixer, gate law and environment, its gate's rows, and the inverse of the law."""
    return json.loads(run_python(copy, ["-c", TRAINED]).splitlines()[-1])


PAGES_WITH_RUN = """
import json
import sys
from streamlit.testing.v1 import AppTest
from app.notebook.view import read_view
from app.ui import data
from storage.notebook import get_entry, list_entries

def open_page(page, **parameters):
    app = AppTest.from_file("app/Home.py", default_timeout=120)
    app.switch_page(f"../pages/{page}.py")
    app.query_params.update({"run": sys.argv[1], "runs": sys.argv[1], **parameters})
    return app.run()

def describe(app):
    texts = [str(text.value) for text in app.markdown] + [toggle.label for toggle in app.toggle]
    errors = [str(error) for error in (*app.exception, *app.error)]
    return {"errors": errors, "text": "\\n".join(texts).replace("\\\\", "")}

pages = {
    "live": describe(open_page("live")),
    "metrics": describe(open_page("live", part="metrics", metrics="train/loss")),
    "compare": describe(open_page("compare", part="Statistics")),
}
metric = open_page("metric", name="rollout/return")
next(button for button in metric.button if button.label == "Pin to notebook").click().run()
entries = list_entries(data.database())
view = read_view(get_entry(data.database(), entries[0].id).view) if entries else None
pinned = [view.page, view.query["name"], view.options] if view else None
pages["metric"] = describe(metric) | {"pinned": pinned}
print(json.dumps(pages))
"""


@pytest.fixture(scope="module")
def pages(copy: Path, trained: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Errors and texts of the pages that show the run, and the pinned view of the new page."""
    return json.loads(run_python(copy, ["-c", PAGES_WITH_RUN, trained["run"]["id"]]).splitlines()[-1])


def test_a_run_is_trained_with_the_new_setting_mixer_and_environment(trained: dict[str, Any]) -> None:
    run = trained["run"]
    assert (run["status"], run["env"]) == ("finished", "climb")
    assert run["config"]["softmix"] == {"hidden": 16, "sharpness": 2.0}
    assert run["config"]["incentive"]["ratio_power"] == 2.0


def test_the_new_gate_law_weighs_the_recorded_rows_and_has_an_inverse(trained: dict[str, Any]) -> None:
    rows = trained["gate"]
    assert rows
    expected = [min(1.0, max(0.0, 1 - row["delta_mem"] / (2 * row["tau"]))) for row in rows]
    assert [row["beta"] for row in rows] == pytest.approx(expected, abs=1e-5)
    assert trained["inverse"] == pytest.approx([0.8, 0.8, 0.8])


def test_the_new_metric_is_exported_and_has_its_chart_on_live(copy: Path, pages: dict[str, dict[str, Any]]) -> None:
    assert len((copy / "same.csv").read_text().splitlines()) > 2
    assert pages["live"]["errors"] == []
    assert "#### Agreement" in pages["live"]["text"]


def test_the_new_option_changes_the_figure_and_has_its_widget_on_live(
    copy: Path, pages: dict[str, dict[str, Any]]
) -> None:
    assert (copy / "length.svg").read_bytes() != (copy / "length_from_zero.svg").read_bytes()
    assert pages["metrics"]["errors"] == []
    assert "Start at 0" in pages["metrics"]["text"]


def test_the_new_statistic_is_exported_and_shown_on_compare(copy: Path, pages: dict[str, dict[str, Any]]) -> None:
    assert (copy / "half_table.csv").read_text().startswith("variant,n,median [env steps]\n")
    assert (copy / "half_figure.csv").read_text().startswith("panel,unit,series,x,value")
    assert pages["compare"]["errors"] == []
    assert "| variant | n | median [env steps] |" in pages["compare"]["text"]
    assert "#### Half-times" in pages["compare"]["text"]


def test_the_view_of_the_new_page_is_pinned(pages: dict[str, dict[str, Any]]) -> None:
    assert pages["metric"]["errors"] == []
    assert pages["metric"]["pinned"] == ["metric", ["rollout/return"], {"metrics": ["rollout/return"]}]


def test_the_new_column_is_searched_and_listed(trained: dict[str, Any]) -> None:
    assert [run["priority"] for run in trained["listed"]] == [3]


def test_the_new_environment_keeps_the_contract(copy: Path) -> None:
    options = ("-q", "-n", "0", "-p", "no:cacheprovider", "-k", "climb", "tests/contracts/test_envs.py")
    assert "passed" in run_python(copy, ["-m", "pytest", *options])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_an_example_touches_as_few_files_as_it_promises(recipe: Recipe) -> None:
    blocks = [block for block in list_blocks(recipe.heading) if not block.path.startswith("tests/")]
    assert len({block.path for block in blocks if block.kind == "diff"}) == recipe.changes
    assert len({block.path for block in blocks if block.kind == "python"}) == recipe.adds


def list_places(heading: str) -> list[str]:
    """List the files and folders that the text of a section names, without those of its examples."""
    text = re.sub(r"^```.*?^```", "", get_section(heading), flags=re.M | re.S)
    return [place for place in re.findall(r"`([^`\s]+)`", text) if place.startswith((*SOURCE, "tests/"))]


def list_files_that_mention(pattern: str) -> set[str]:
    files = [file for top in SOURCE for end in ("py", "toml", "js") for file in (ROOT / top).rglob(f"*.{end}")]
    names = {str(file.relative_to(ROOT)) for file in files if re.search(pattern, file.read_text())}
    return {name for name in names if not any(fnmatch(name, each) for each in REFERS)}


@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe.mentions], ids=lambda recipe: recipe.heading)
def test_a_section_names_every_file_that_mentions_a_thing_of_its_kind(recipe: Recipe) -> None:
    places = list_places(recipe.heading)
    files = list_files_that_mention(recipe.mentions)
    assert files, f"no file mentions {recipe.mentions}: choose another example"
    assert {file for file in files if not any(file == p or file.startswith(f"{p}/") for p in places)} == set()


def test_every_script_of_pages_is_in_the_navigation() -> None:
    scripts = {file.stem for file in (ROOT / "pages").glob("*.py")} - {"__init__"}
    assert sorted(PAGES) == sorted(scripts), "give each script of pages/ one line in app/navigation.py"


def test_every_module_of_named_results_lists_what_it_makes() -> None:
    modules = [import_module(f"{named.__name__}.{each.name}") for each in iter_modules(named.__path__)]
    kinds = [kind for module in modules for kind in (*getattr(module, "FIGURES", ()), *getattr(module, "TABLES", ()))]
    unlisted = [m.__name__ for m in modules if not (hasattr(m, "FIGURES") or hasattr(m, "TABLES"))]
    assert len(kinds) == len(FIGURES) + len(TABLES), "two figures, or two tables, have the same name"
    assert unlisted in ([], [f"{named.__name__}.study_tables"]), f"{unlisted} list neither FIGURES nor TABLES"
