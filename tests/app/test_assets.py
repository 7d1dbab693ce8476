"""The scripts of the canvas components: one after the shared functions, so no name may stand in both."""

import re
from pathlib import Path

import pytest

ASSETS = Path(__file__).parents[2] / "app" / "components" / "assets"
TOP_LEVEL = re.compile(r"^(?:export default )?(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)


def names_of(script: str) -> list[str]:
    return TOP_LEVEL.findall((ASSETS / script).read_text(encoding="utf-8"))


@pytest.mark.parametrize("script", ["curves.js", "legend.js", "field.js", "playback.js", "atlas.js"])
def test_no_name_of_a_component_is_one_of_the_shared_functions(script: str) -> None:
    assert names_of(script)
    assert set(names_of("common.js")) & set(names_of(script)) == set()


def test_the_two_scripts_of_the_player_share_no_name() -> None:
    assert set(names_of("field.js")) & set(names_of("playback.js")) == set()
