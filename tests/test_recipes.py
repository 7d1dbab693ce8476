"""The recipes of the guide are whole: an example of each is followed through the tree.

Whoever adds a mixer, a page or a column follows a recipe. What the recipe's example touches in the tree and the
recipe does not name is a place that will be forgotten.
"""

import re
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import NamedTuple

import pytest

from app.figures import named
from app.figures.registry import FIGURES, TABLES
from emtc_core.config.run import BACKBONES, ON_POLICY, PRESETS
from emtc_core.learner import factory

ROOT = Path(__file__).parent.parent
EXTENDING = (ROOT / "app" / "guide" / "extending.md").read_text()
SOURCE = ("app", "emtc_core", "pages", "storage")
CHOOSES = (  # these choose among what there is, or hold it against what others published
    "app/bench/*",
    "app/jobs/sweeps/templates/*",
    "emtc_core/config/presets/*",
    "app/ui/method/published_differences.json",
)


class Recipe(NamedTuple):
    heading: str
    example: str  # as a regular expression
    most_files: int


RECIPES = [
    Recipe("Add an environment", r"\bsmax\b", 2),
    Recipe("Add a mixer or a backbone", r"\bvdn\b", 3),
    Recipe("Add a gate rule, or a reading of the paper", "before_write|literal_raw", 5),
    Recipe("Add an embedder loss", "state_loss", 4),
    Recipe("Add a metric", "memory/evicted", 2),
    Recipe("Add a page", r"pages/disk\.py", 2),
    Recipe("Add a figure or a table", "performance-profile", 1),
]


def text_of(heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## )", EXTENDING, re.MULTILINE | re.DOTALL)
    assert found, f"extending.md has no recipe called {heading!r}"
    return found[1]


def places_of(heading: str) -> list[str]:
    quoted = re.findall(r"`([^`\s]+)`", text_of(heading))
    return [place for place in quoted if place.startswith((*(f"{top}/" for top in SOURCE), "tests/"))]


def mentions(example: str) -> set[str]:
    files = [file for top in SOURCE for end in ("py", "toml", "js") for file in (ROOT / top).rglob(f"*.{end}")]
    found = {str(file.relative_to(ROOT)) for file in files if re.search(example, file.read_text())}
    return {file for file in found if not any(fnmatch(file, each) for each in CHOOSES)}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.heading)
def test_a_recipe_names_every_file_that_its_example_touches(recipe: Recipe) -> None:
    places = [place.replace("<name>", "*") for place in places_of(recipe.heading)]
    touched = mentions(recipe.example)
    assert touched, f"nothing is called {recipe.example} any more: choose another example"
    forgotten = {f for f in touched if not any(fnmatch(f, p) or f.startswith(f"{p}/") for p in places)}
    told = f"{sorted(forgotten)} mention {recipe.example} and are not named"
    assert not forgotten, f"extending.md, {recipe.heading!r}: {told}"
    assert len(touched) <= recipe.most_files, f"{recipe.heading}: {len(touched)} files, {recipe.most_files} promised"


@pytest.mark.parametrize("heading", [recipe.heading for recipe in RECIPES] + ["Add a setting", "Add a column"])
def test_a_recipe_names_only_what_exists(heading: str) -> None:
    places = places_of(heading)
    assert places
    missing = [place for place in places if "<name>" not in place and not (ROOT / place).exists()]
    assert not missing, f"extending.md, {heading!r}: {missing} do not exist"


@pytest.mark.parametrize("setting", ["double_q", "noise_on_masked", "weighted_head"])
def test_a_setting_is_named_where_it_is_declared_and_where_it_acts(setting: str) -> None:
    touched = mentions(rf"\b{setting}\b")
    assert len(touched) == 2, f"{sorted(touched)} mention {setting}"
    assert len([file for file in touched if file.startswith("emtc_core/config/")]) == 1


def test_every_backbone_of_the_configuration_can_be_made() -> None:
    assert set(factory.BACKBONES) | set(ON_POLICY) == set(BACKBONES), "list it in BACKBONES or MIXERS of its module"


def test_every_script_of_pages_is_in_the_navigation() -> None:
    scripts = {file.name for file in (ROOT / "pages").glob("*.py")} - {"__init__.py"}
    listed = re.findall(r"\.\./pages/(\w+\.py)", (ROOT / "app" / "Home.py").read_text())
    assert sorted(listed) == sorted(scripts), "give each script of pages/ one st.Page line in app/Home.py"


def test_every_folder_of_the_ui_belongs_to_a_page() -> None:
    folders = {each.name for each in (ROOT / "app" / "ui").iterdir() if (each / "__init__.py").exists()}
    pages = {file.stem for file in (ROOT / "pages").glob("*.py")}
    assert folders - pages == {"widgets"}, f"{sorted(folders - pages)} have no page: shared parts lie in app/ui/widgets"


def test_every_module_of_named_results_lists_what_it_makes() -> None:
    modules = [import_module(f"{named.__name__}.{each.name}") for each in iter_modules(named.__path__)]
    kinds = [kind for module in modules for kind in (*getattr(module, "FIGURES", ()), *getattr(module, "TABLES", ()))]
    silent = [m.__name__ for m in modules if not (hasattr(m, "FIGURES") or hasattr(m, "TABLES"))]
    assert len(kinds) == len(FIGURES) + len(TABLES), "two figures, or two tables, share a name"
    assert silent in ([], [f"{named.__name__}.study_tables"]), f"{silent} list neither FIGURES nor TABLES"


def test_every_preset_has_its_file() -> None:
    files = {file.stem for file in (ROOT / "emtc_core" / "config" / "presets").glob("*.toml")}
    assert files == set(PRESETS), "name each file of config/presets in PresetName of emtc_core/config/run.py"
