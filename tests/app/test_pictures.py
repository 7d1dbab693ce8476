"""The README's pictures: all of them, in both themes, with their size."""

import numpy as np
from PIL import Image

from tests.tools.pictures import FOLDER, MAX_TOTAL_KB, SCHEMES


def test_the_pictures_are_all_there_and_small_together():
    files = [FOLDER / f"{name}-{scheme}.png" for name in ("live", "memory", "compare") for scheme in SCHEMES]
    assert sorted(FOLDER.glob("*.png")) == sorted(files)
    assert sum(file.stat().st_size for file in FOLDER.rglob("*.png")) <= 1000 * MAX_TOTAL_KB
    for file in files:
        pixels = np.asarray(Image.open(file).convert("RGB"))
        assert pixels.shape == (900, 1440, 3)
        assert (pixels.mean() < 100) == file.stem.endswith("dark")
