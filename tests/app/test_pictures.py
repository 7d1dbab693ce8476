"""The README's pictures: their content, their size, and the reduction of colors."""

from io import BytesIO

import numpy as np
from PIL import Image

from tests.tools.pictures import FOLDER, MAX_TOTAL_KB, SCHEMES, reduce_colors


def png_of(pixels: np.ndarray) -> bytes:
    out = BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "PNG")
    return out.getvalue()


def pixels_of(png: bytes) -> np.ndarray:
    with Image.open(BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB"), np.int64)


def picture_of(colors: np.ndarray) -> np.ndarray:
    return np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1).reshape(32, -1, 3)


def test_frequent_colors_stay_among_many_rare_ones():
    rng = np.random.default_rng(0)
    frequent, rare = rng.choice(1 << 24, 100, replace=False), rng.choice(1 << 24, 600)
    reduced = pixels_of(reduce_colors(png_of(picture_of(np.append(np.repeat(frequent, 10), rare))))).reshape(-1, 3)
    assert (reduced[:1000] == picture_of(np.repeat(frequent, 32)).reshape(-1, 3)[::32].repeat(10, axis=0)).all()
    assert len(np.unique(reduced, axis=0)) <= 256


def test_the_pictures_are_all_there_and_small_together():
    files = [FOLDER / f"{name}-{scheme}.png" for name in ("live", "memory", "compare") for scheme in SCHEMES]
    assert sorted(FOLDER.glob("*.png")) == sorted(files)
    assert sum(file.stat().st_size for file in FOLDER.rglob("*.png")) <= 1000 * MAX_TOTAL_KB
    for file in files:
        pixels = pixels_of(file.read_bytes())
        assert pixels.shape == (900, 1440, 3)
        assert (pixels.mean() < 100) == file.stem.endswith("dark")
