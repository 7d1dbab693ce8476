"""The README's pictures: demo runs, the real app and a headless browser; Live, Memory and Compare, light and dark.

What is photographed has settled: nothing is computed any more, every chart is drawn, no message is in the way.
"""

import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from app.bench import Figure, make_figure
from app.bench.atlas import opened_page, served
from app.jobs.launch import ROOT
from emtc_core.errors import ConfigError
from storage import open_database

FOLDER = ROOT / "app" / "guide" / "pictures"
MOST_KB = 1500
"""All pictures together, so that a clone stays small [kB]."""
ALGOS, SEEDS, MAP = ("emtc-qplex", "emu-qplex"), (1, 2), "3m"
Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
_KEPT, _SHARED = 160, 96
_STILL_MS = 2000
_SETTLED = """() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
    && !document.querySelector("[data-testid=stSpinner], [data-testid=stSkeleton], [data-testid=stToast]")"""


def run(db: str | None = None) -> list[Figure]:
    """Write the pictures into the guide's folder and tell their sizes.

    Args:
        db: URL of a database that holds finished demo runs and nothing else; they are trained first when missing.

    Raises:
        ConfigError: If a browser, or a demo run of an algorithm, is missing.
    """
    FOLDER.mkdir(exist_ok=True)
    sizes: dict[str, int] = {}
    with _demo_runs(db) as url, tempfile.TemporaryDirectory() as folder:
        views = _views(url)
        with served(url, Path(folder) / "app.txt", env={"EMTC_WARM_UP": "0"}) as address:
            for scheme in SCHEMES:
                for name, picture in _photograph(address, views, scheme):
                    path = FOLDER / f"{name}-{scheme}.png"
                    path.write_bytes(picture)
                    sizes[path.stem] = len(picture)
    figures = [_figure(name, size, None) for name, size in sizes.items()]
    return [*figures, _figure("all", sum(sizes.values()), MOST_KB)]


def choose_node(nodes: pd.DataFrame, steps: pd.DataFrame) -> int:
    """The slot of a node that has something to tell: the episode behind it opened and closed the gate as none did.

    Args:
        nodes: Snapshot of a memory: slot, episode, t.
        steps: Transitions of the run: episode, t, slot, beta.
    """
    kept = steps.merge(nodes[["slot", "episode", "t"]], on=["slot", "episode", "t"])  # no other state took the place
    spread = kept.groupby("episode")["beta"].transform("std")
    beta = kept["beta"].where(spread == spread.max(), np.inf)
    return int(kept["slot"].to_numpy()[beta.argmin()])


def reduce_colors(png: bytes) -> bytes:
    """The same picture in 256 colours, about a third of its size.

    Lines and letters keep their colour exactly, because the most frequent colours stay. The others, at edges half ink
    and half ground, share what is left.
    """
    with Image.open(BytesIO(png)) as opened:
        pixels = np.asarray(opened.convert("RGB"), np.int64)
    colors, place, number = np.unique(pixels @ (1 << 16, 1 << 8, 1), return_inverse=True, return_counts=True)
    channels = np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1)
    order = np.argsort(-number, kind="stable")
    palette = np.concatenate([channels[order[:_KEPT]], _sum_up(channels[order[_KEPT:]])])
    nearest = np.square(channels[:, None] - palette).sum(axis=2).argmin(axis=1)  # Pillow's own search is inexact
    reduced = Image.fromarray(nearest[place].reshape(pixels.shape[:2]).astype(np.uint8), "P")
    reduced.putpalette(palette.astype(np.uint8).tobytes())
    out = BytesIO()
    reduced.save(out, "PNG", optimize=True)
    return out.getvalue()


def _sum_up(colors: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find colours that stand for all of these [N, 3]."""
    if len(colors) <= _SHARED:
        return colors
    strip = Image.fromarray(colors[None].astype(np.uint8), "RGB").quantize(_SHARED, dither=Image.Dither.NONE)
    return np.array(strip.getpalette(), np.int64).reshape(-1, 3)[:_SHARED]


@contextmanager
def _demo_runs(url: str | None) -> Generator[str]:
    """Yield the URL of a database with the demo runs, which is gone afterwards if they were trained here."""
    if url is not None:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="emtc-pictures-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        for seed in SEEDS:
            for algo in ALGOS:
                words = (
                    "train",
                    "--map",
                    MAP,
                    "--algo",
                    algo,
                    "--seed",
                    str(seed),
                    "--set",
                    "preset=demo",
                    "--db",
                    url,
                )
                subprocess.run([sys.executable, "-m", "app.cli.main", *words], cwd=ROOT, check=True)
        yield url


def _views(url: str) -> dict[str, tuple[str, str]]:
    """What is photographed: name → address on the server, and what is drawn there once it is complete."""
    db = open_database(url)
    runs = db.runs(f"map={MAP} status=finished").sort_values(["algo", "seed"])
    if missing := sorted(set(ALGOS) - set(runs["algo"])):
        raise ConfigError(f"must have a finished demo run of {missing[0]}", key=url)
    shown = str(dict(zip(runs["algo"][::-1], runs["id"][::-1], strict=True))[ALGOS[0]])
    run = db.run(shown)
    slot = choose_node(run.snapshot(), run.transitions(["episode", "t", "slot", "beta"]))
    return {
        "live": (f"live?run={shown}", ".curves canvas >> nth=3"),
        "memory": (f"memory?run={shown}&point={slot}", ".playback[data-frame]"),
        "compare": ("compare", ".curves canvas"),
    }


def _photograph(address: str, views: dict[str, tuple[str, str]], scheme: Scheme) -> Iterator[tuple[str, bytes]]:
    with opened_page(color_scheme=scheme) as page:
        for name, (path, drawn) in views.items():
            page.goto(f"{address}/{path}")
            page.locator(drawn).first.wait_for()
            _wait_until_still(page)
            yield name, reduce_colors(page.screenshot())


def _wait_until_still(page: Any) -> None:
    """Wait until two looks, some time apart, find nothing at work and the same picture."""
    before = b""
    while True:
        page.wait_for_function(_SETTLED)
        now = page.screenshot()
        if now == before:
            return
        before = now
        page.wait_for_timeout(_STILL_MS)


def _figure(name: str, size: int, budget: float | None) -> Figure:
    return make_figure(f"pictures.{name}", size / 1000, "kB", budget, "1440 × 900 points, 256 colours")
