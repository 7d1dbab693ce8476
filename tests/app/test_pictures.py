"""The README's pictures: their content, their size, and the reduction of colors."""

from io import BytesIO

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from emtc_core.errors import ConfigError, EmtcError
from storage.engine import open_database
from tests.errors import raises
from tests.tools import pictures
from tests.tools.pictures import FOLDER, MAX_TOTAL_KB, SCHEMES, choose_node, reduce_colors


def png_of(pixels: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def pixels_of(png: bytes) -> np.ndarray:
    with Image.open(BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB"), np.int64)


def picture_of(colors: np.ndarray) -> np.ndarray:
    return np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1).reshape(32, -1, 3)


def test_a_picture_of_few_colors_stays_as_it_is():
    few = picture_of(np.repeat(np.random.default_rng(0).choice(1 << 24, 256, replace=False), 4))
    assert (pixels_of(reduce_colors(png_of(few))) == few).all()


def test_frequent_colors_stay_among_many_rare_ones():
    rng = np.random.default_rng(0)
    frequent, rare = rng.choice(1 << 24, 100, replace=False), rng.choice(1 << 24, 600)
    reduced = pixels_of(reduce_colors(png_of(picture_of(np.append(np.repeat(frequent, 10), rare))))).reshape(-1, 3)
    assert (reduced[:1000] == picture_of(np.repeat(frequent, 32)).reshape(-1, 3)[::32].repeat(10, axis=0)).all()
    assert len(np.unique(reduced, axis=0)) <= 256


def test_the_node_is_the_one_where_the_gate_closed_in_the_episode_that_moved_it_most():
    steps = pd.DataFrame(
        {
            "episode": [1, 1, 1, 2, 2, 2],
            "t": [0, 1, 2, 0, 1, 2],
            "slot": [10, 11, 12, 20, 21, 22],
            "beta": [1.0, 0.9, 1.0, 1.0, 0.0, 0.5],
        }
    )
    nodes = steps[["slot", "episode", "t"]]
    assert choose_node(nodes, steps) == 21
    taken = nodes.assign(episode=nodes["episode"].where(nodes["slot"] != 21, 3))
    assert choose_node(taken, steps) == 22, "slot 21 holds the state of another episode by now"


def test_a_database_without_the_runs_is_refused_before_a_browser_opens(tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "pictures")
    url = f"sqlite:///{tmp_path / 'x.db'}"
    open_database(url).dispose()
    with raises(ConfigError, key=url):
        pictures.run(db=url)


class ChangingPage:
    url = "http://localhost/live"

    def __init__(self) -> None:
        self.n_screenshots = 0

    def wait_for_function(self, script: str) -> None: ...

    def wait_for_timeout(self, milliseconds: int) -> None: ...

    def screenshot(self) -> bytes:
        self.n_screenshots += 1
        return str(self.n_screenshots).encode()


def test_a_page_that_never_stops_changing_ends_with_an_error(monkeypatch):
    monkeypatch.setattr(pictures, "STILL_TIMEOUT_S", 0.0)
    with pytest.raises(EmtcError, match="changes"):
        pictures._wait_until_still(ChangingPage())


def test_the_pictures_are_all_there_and_small_together():
    files = [FOLDER / f"{name}-{scheme}.png" for name in ("live", "memory", "compare") for scheme in SCHEMES]
    assert sorted(FOLDER.glob("*.png")) == sorted(files)
    assert sum(file.stat().st_size for file in FOLDER.rglob("*.png")) <= 1000 * MAX_TOTAL_KB
    for file in files:
        pixels = pixels_of(file.read_bytes())
        assert pixels.shape == (900, 1440, 3)
        assert (pixels.mean() < 100) == file.stem.endswith("dark")
