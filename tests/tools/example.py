"""Make the example study that is part of the program anew: `app/guide/first-study.emtc`.

    python -m tests.tools.example

The bundle contains the runs of the first study as the present file has them: their curves, the outcomes of their
episodes, and samples of some memories. One run that does not belong to the study is trained: a short one on a map that
the study does not use. Everything that it recorded is in the bundle, so that each step of the tour and of the guide can
be done in the example. The notebook has one entry per chapter, with a pinned figure. The claims of the study are in the
guide (*Findings*); a chapter only explains what its figure shows.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.analysis.quantities import AUTO
from app.analysis.settings import name_algo
from app.analysis.tables import export_table
from app.cli.output import print_message
from app.figures.named.memories import best_and_worst
from app.figures.registry import TABLES, find_figure
from app.jobs.launch import EXAMPLE_BUNDLE, ROOT
from app.notebook.view import Query, freeze, make_view
from emtc_core import __version__
from storage.bundles.bundle_cache import cache_bundle
from storage.bundles.contents import Contents
from storage.bundles.write import WrittenBundle, write_bundle
from storage.engine import Database, open_database
from storage.notebook import create_entry
from storage.queries.episode_search import find_replayable_episodes
from storage.queries.memory import list_snapshots
from storage.queries.runs import get_rows, list_runs
from storage.runs.labels import note_runs, set_visibility
from storage.runs.removal import remove_run
from storage.runs.rows import RunRow

TRAINING: Final = (
    *("--map", "3m", "--algo", "emtc-qplex", "--seed", "1", "--steps", "20000", "--set", "preset=demo"),
    *("--set", "record.snapshots=5", "--name", "Example on 3m · EMTC · seed 1"),
)
"""Arguments of `emtc train`: small enough for the bundle, and long enough to learn the map."""
NOTE: Final = "Not part of the study. A short run of which the bundle contains everything that was recorded."
METHODS: Final = ("tsne", "umap")
"""Layouts of the last memory that are stored: a bundle is read-only, so no page can compute them."""
LANDMARKS: Final = 5000
"""Landmarks of these layouts: the default of the page *Memory*."""
TABLES_OF_STUDY: Final = ("findings", "study-measures", "win-rates", "falls", "mu-w", "comparisons")
"""Tables of the study's runs that must not change."""


@dataclass(frozen=True)
class Chapter:
    """A figure with a text, and the page that shows it."""

    title: str
    body: str
    figure: str
    page: str
    query: Query
    """URL parameters of the page."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the figure."""


def make_example(bundle: Path = EXAMPLE_BUNDLE, out: Path = EXAMPLE_BUNDLE) -> WrittenBundle:
    """Train the run, write the notebook and write the bundle.

    Args:
        bundle: The bundle with the runs of the study.
        out: The new bundle, which may be the same file.

    Raises:
        RuntimeError: If a table of the study has changed.
    """
    with tempfile.TemporaryDirectory(prefix="emtc-example-") as folder:
        study = cache_bundle(bundle, cache=Path(folder) / "present").study
        db = open_database(f"sqlite:///{shutil.copy(study, Path(folder) / 'example.db')}")
        rows = get_rows(db, list(list_runs(db, limit=None)["id"]))
        for row in rows:
            if row.sweep_id is None:  # the run that an earlier call has trained
                remove_run(db, row.id)
        study_rows = [row for row in rows if row.sweep_id is not None]
        run = train_run(db)
        contents = choose_contents(db, study_rows, run)
        row_ids = [row.id for row in (*study_rows, run)]
        made = write_bundle(
            db, row_ids, out, contents, made_by=f"emtc-lab {__version__}",
            add=lambda target: complete(target, study_rows, run),
        )  # fmt: skip
        before = make_tables(open_database(f"sqlite:///{study}", read_only=True), study_rows)
        written = cache_bundle(out, cache=Path(folder) / "written")
        after = make_tables(open_database(written.url, read_only=True), study_rows)
        db.dispose()
    if changed := [name for name in before if before[name] != after[name]]:
        raise RuntimeError(f"The tables {', '.join(changed)} of the study have changed.")
    return made


def train_run(db: Database) -> RunRow:
    """Train the run with everything recorded, and store the layouts of its last memory."""
    _run_command("train", *TRAINING, "--db", db.url)
    (run,) = [row for row in get_rows(db, list(list_runs(db, limit=None)["id"])) if row.sweep_id is None]
    for method in METHODS:
        _run_command("project", run.id, "--method", method, "--points", str(LANDMARKS), "--db", db.url)
    note_runs(db, [run.id], NOTE)
    return get_rows(db, [run.id])[0]


def choose_contents(db: Database, study_rows: Sequence[RunRow], run: RunRow) -> Contents:
    """Choose everything of the run, and of the study's runs what the present bundle has."""
    snapshots = {row.id: len(list_snapshots(db, row.id)) for row in study_rows}
    episodes = {row.id: frozenset(find_replayable_episodes(db, row.id)) for row in study_rows}
    return Contents(
        snapshots=False,
        playbacks=False,
        transitions=False,
        kept_episodes={run_id: numbers for run_id, numbers in episodes.items() if numbers},
        sampled_snapshots={run_id: n for run_id, n in snapshots.items() if n},
        whole_runs=frozenset({run.id}),
    )


def make_tables(db: Database, rows: Sequence[RunRow]) -> dict[str, bytes]:
    """Make the tables of the study's runs, by name, as CSV."""
    return {name: export_table(TABLES[name].make(db, rows), "csv") for name in TABLES_OF_STUDY}


def complete(db: Database, study_rows: Sequence[RunRow], run: RunRow) -> None:
    """Write the notebook of the bundle, and hide the run in figures and tables, because it is not part of the study."""
    write_notebook(db, study_rows, run)
    set_visibility(db, [run.id], "hide")


def write_notebook(db: Database, study_rows: Sequence[RunRow], run: RunRow) -> None:
    """Write the entries of the notebook. The first chapter is written last, so that it is the newest entry."""
    rows = (*study_rows, run)
    for number, chapter in reversed(list(enumerate(list_chapters(db, study_rows, run), 1))):
        run_ids = chapter.query.get("run") or chapter.query["runs"][0].split(",")
        cited = [row for row in rows if row.id in run_ids]
        kind = find_figure(chapter.figure)
        figure = kind.make(db, cited, kind.read_options(chapter.facts))
        view = make_view(page=chapter.page, figure=chapter.figure, query=chapter.query, runs=cited, facts=chapter.facts)
        create_entry(
            db, title=f"{number}. {chapter.title}", body=chapter.body, run_id=cited[0].id if len(cited) == 1 else None,
            figure=freeze(figure), view=view,
        )  # fmt: skip


def list_chapters(db: Database, study_rows: Sequence[RunRow], run: RunRow) -> list[Chapter]:
    """List the chapters: the curves of each map, then the gate, the memory and two episodes of the run."""
    maps = sorted({row.map for row in study_rows}, key=lambda name: -_get_longest(study_rows, name))
    best, worst = best_and_worst(db, run)
    return [
        *(_describe_curves([row for row in study_rows if row.map == name]) for name in maps),
        _describe_gate(run),
        _describe_memory(db, run),
        _describe_episodes(run, best, worst),
        _describe_paths(run, best, worst),
    ]


def _get_longest(rows: Iterable[RunRow], map: str) -> int:
    return max(row.env_steps for row in rows if row.map == map)


def _describe_curves(rows: Sequence[RunRow]) -> Chapter:
    body = (
        "Each line is a variant over its seeds, up to the largest number of env steps that all of them reached. *Win "
        "rates* and *Statistics* below the curves show the number of seeds, and what can be concluded from so few."
    )
    query = {"runs": [",".join(row.id for row in rows)], "rate": [AUTO]}
    title = f"Who learns on {rows[0].map}, and how fast"
    return Chapter(title, body, "learning-curves", "compare", query, {"rate": AUTO})


def _describe_gate(run: RunRow) -> Chapter:
    body = (
        f"{name_algo(run.algo)}, seed {run.seed}, on {run.map}: a short run that is not part of the study. Δ̄_mem is "
        "the mean consistency error of the memory, β̄ the mean fraction of the incentive that passes the gate, and τ "
        "the temperature of the gate. If states never merge, β stays at 1 and the gate has no effect. *Live* shows "
        "which of the two is the case."
    )
    return Chapter("The gate during training", body, "gate-dynamics", "live", {"run": [run.id]})


def _describe_memory(db: Database, run: RunRow) -> Chapter:
    last = int(list_snapshots(db, run.id)["id"].iloc[-1])
    body = (
        "Every point is a stored state. Its color is the highest return that was ever reached from it. *Has this "
        "embedding collapsed?* shows whether neighbors on this map have similar returns. *Neighbors* lists the "
        "neighbors of a point."
    )
    query = {"run": [run.id], "snap": [str(last)]}
    return Chapter("The memory", body, "memory-atlas", "memory", query, {"snapshot": last})


def _describe_episodes(run: RunRow, best: int, worst: int) -> Chapter:
    body = (
        "The best and the worst of the last episodes: the consistency error, the gate, the return of the recalled "
        "node, the reward and the health of both teams at each step. *Open this view* plays both episodes with one "
        "time cursor."
    )
    query = {"run": [run.id], "episode": [str(best)], "beside": [str(worst)]}
    facts = {"pair": [{"episode": best}, {"episode": worst}]}
    return Chapter("Two episodes, step by step", body, "trajectories", "replay", query, facts)


def _describe_paths(run: RunRow, best: int, worst: int) -> Chapter:
    body = "The same two episodes on the map of the memory. A path connects the nodes that the episode recalled."
    query = {"run": [run.id], "more_figures": ["true"], "more_figure": ["strategy-divergence"]}
    return Chapter(
        "Their paths through the memory", body, "strategy-divergence", "memory", query, {"episodes": [best, worst]}
    )


def _run_command(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "app.cli.main", *arguments], cwd=ROOT, check=True)


if __name__ == "__main__":
    written = make_example()
    print_message(f"Wrote {written.place}: {written.runs} runs in {written.size_bytes:,} bytes.")
