"""The scripts of the canvas components: one after the shared functions, so no name may stand in both."""

import re
from pathlib import Path

import pytest

ASSETS = Path(__file__).parents[2] / "app" / "figures" / "assets"
TOP_LEVEL = re.compile(r"^(?:export default )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


def names_of(script: str) -> list[str]:
    return TOP_LEVEL.findall((ASSETS / script).read_text(encoding="utf-8"))


COMPONENTS = [
    ("curves.js",),
    ("run_list.js",),
    ("field.js", "replay.js"),
    ("atlas_points.js", "atlas_picture.js", "atlas_controls.js", "atlas.js"),
]


@pytest.mark.parametrize("scripts", COMPONENTS)
def test_no_name_stands_twice_in_a_component(scripts: tuple[str, ...]) -> None:
    names = [name for script in ("line_marker.js", "common.js", *scripts) for name in names_of(script)]
    assert len(names) > len(scripts)
    assert sorted(names) == sorted(set(names))
