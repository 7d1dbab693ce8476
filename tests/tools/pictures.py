"""Make the README's pictures: screenshots of Live, Memory and Compare with demo runs, in light and dark mode.

A screenshot is taken when the page no longer changes: no computation is running, every chart is drawn, and no message
is visible.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from app.jobs.launch import ROOT
from emtc_core.errors import ConfigError, EmtcError
from storage import open_database
from tests.app_server import open_page, serve_app
from tests.report import BenchResult, add_json_option, make_result, run_and_report

FOLDER = ROOT / "app" / "guide" / "pictures"
MAX_TOTAL_KB = 1500
"""Maximum size of all pictures together [kB], so that a clone stays small."""
ALGOS, SEEDS, MAP = ("emtc-qplex", "emu-qplex"), (1, 2), "3m"
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
STILL_TIMEOUT_S = 120.0
"""Maximum time until a page no longer changes."""
_N_FREQUENT, _N_MIXED = 160, 96
_STILL_INTERVAL_MS = 2000
_IS_IDLE = """() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
    && !document.querySelector("[data-testid=stSpinner], [data-testid=stSkeleton], [data-testid=stToast]")"""


def run(db: str | None = None) -> list[BenchResult]:
    """Write the pictures into the guide's folder and report their sizes.

    Args:
        db: URL of a database with finished demo runs only. None: they are trained first.

    Raises:
        ConfigError: If a browser is missing, or the database has no demo run of an algorithm.
        EmtcError: If a page still changes after STILL_TIMEOUT_S.
    """
    FOLDER.mkdir(exist_ok=True)
    sizes: dict[str, int] = {}
    with _open_demo_runs(db) as url, tempfile.TemporaryDirectory() as folder:
        views = _make_views(url)
        with serve_app(url, Path(folder) / "app.txt") as address:
            for scheme in SCHEMES:
                for name, picture in _take_screenshots(address, views, scheme):
                    path = FOLDER / f"{name}-{scheme}.png"
                    path.write_bytes(picture)
                    sizes[path.stem] = len(picture)
    results = [_make_result(name, size, None) for name, size in sizes.items()]
    return [*results, _make_result("all", sum(sizes.values()), MAX_TOTAL_KB)]


def choose_node(nodes: pd.DataFrame, steps: pd.DataFrame) -> int:
    """Return the slot of the node with the smallest β in the episode whose β varies most.

    Args:
        nodes: Snapshot of a memory: slot, episode, t.
        steps: Transitions of the run: episode, t, slot, beta.
    """
    stored = steps.merge(nodes[["slot", "episode", "t"]], on=["slot", "episode", "t"])  # not overwritten since
    spread = stored.groupby("episode")["beta"].transform("std")
    beta = stored["beta"].where(spread == spread.max(), np.inf)
    return int(stored["slot"].to_numpy()[beta.argmin()])


def reduce_colors(png: bytes) -> bytes:
    """Reduce a picture to 256 colors, which is about a third of its size.

    The most frequent colors are kept exactly, so lines and letters do not change. The other colors, at antialiased
    edges, are approximated by the rest of the palette.
    """
    with Image.open(BytesIO(png)) as image:
        pixels = np.asarray(image.convert("RGB"), np.int64)
    colors, color_of_pixel, number = np.unique(pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    channels = np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1)
    order = np.argsort(-number, kind="stable")
    palette = np.concatenate([channels[order[:_N_FREQUENT]], _mix(channels[order[_N_FREQUENT:]])])
    nearest = np.square(channels[:, None] - palette).sum(axis=2).argmin(axis=1)  # Pillow's search is not exact
    reduced = Image.fromarray(nearest[color_of_pixel].reshape(pixels.shape[:2]).astype(np.uint8), "P")
    reduced.putpalette(palette.astype(np.uint8).tobytes())
    out = BytesIO()
    reduced.save(out, "PNG", optimize=True)
    return out.getvalue()


def _mix(colors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose at most _N_MIXED colors that approximate the given colors [N, 3]."""
    if len(colors) <= _N_MIXED:
        return colors
    strip = Image.fromarray(colors[None].astype(np.uint8), "RGB").quantize(_N_MIXED, dither=Image.Dither.NONE)
    return np.array(strip.getpalette(), np.int64).reshape(-1, 3)[:_N_MIXED]


@contextmanager
def _open_demo_runs(url: str | None) -> Generator[str]:
    """Yield the URL of a database with the demo runs. Without `url`, train them in a temporary database."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="emtc-pictures-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        for seed in SEEDS:
            for algo in ALGOS:
                options = f"--map {MAP} --algo {algo} --seed {seed} --set preset=demo --db".split()
                subprocess.run([sys.executable, "-m", "app.cli.main", "train", *options, url], cwd=ROOT, check=True)
        yield url


def _make_views(url: str) -> dict[str, tuple[str, str]]:
    """Return the views: name → path on the server, and a selector of an element of the complete page."""
    db = open_database(url)
    runs = db.runs(f"map={MAP} status=finished").sort_values(["algo", "seed"])
    if missing := sorted(set(ALGOS) - set(runs["algo"])):
        raise ConfigError(f"must have a finished demo run of {missing[0]}", key=url)
    run_id = str(runs.loc[runs["algo"] == ALGOS[0], "id"].iloc[0])
    run = db.run(run_id)
    slot = choose_node(run.snapshot(), run.transitions(["episode", "t", "slot", "beta"]))
    return {
        "live": (f"live?run={run_id}", ".curves canvas >> nth=3"),
        "memory": (f"memory?run={run_id}&point={slot}", ".playback[data-frame]"),
        "compare": ("compare", ".curves canvas"),
    }


def _take_screenshots(address: str, views: dict[str, tuple[str, str]], scheme: Scheme) -> Iterator[tuple[str, bytes]]:
    with open_page(color_scheme=scheme) as page:
        for name, (path, selector) in views.items():
            page.goto(f"{address}/{path}")
            page.locator(selector).first.wait_for()
            _wait_until_still(page)
            yield name, reduce_colors(page.screenshot())


def _wait_until_still(page: Any) -> None:
    """Wait until the page is idle and two screenshots, _STILL_INTERVAL_MS apart, are equal.

    Raises:
        EmtcError: If the page still changes after STILL_TIMEOUT_S.
    """
    deadline = time.monotonic() + STILL_TIMEOUT_S
    last = b""
    while True:
        page.wait_for_function(_IS_IDLE)
        screenshot = page.screenshot()
        if screenshot == last:
            return
        if time.monotonic() > deadline:
            raise EmtcError(f"The page still changes after {STILL_TIMEOUT_S:g} s.")
        last = screenshot
        page.wait_for_timeout(_STILL_INTERVAL_MS)


def _make_result(name: str, size: int, budget: float | None) -> BenchResult:
    return make_result(f"pictures.{name}", size / 1000, "kB", budget, "1440 × 900 points, 256 colors")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, make the pictures and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.pictures", description=__doc__)
    parser.add_argument("--db", help="a database with the demo runs; without it they are trained, which takes minutes")
    add_json_option(parser)
    options = parser.parse_args(arguments)
    return run_and_report("pictures", run, json=options.json, db=options.db)


if __name__ == "__main__":
    sys.exit(main())
