"""The notebook of the example study: its story in pinned figures whose views open, written when the bundle is made.

Curves first, then the gate of one run, what that run remembers, and one episode beside its verdicts. A chapter that
these runs cannot tell, because a snapshot or an episode is not there, is left out. What is claimed stands in the guide
(*Findings*); a chapter says what to look at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.analysis.settings import name_algo
from app.figures.registry import find_figure
from app.notebook.frozen import freeze
from app.notebook.view import Query, make_view
from emtc_core.errors import EmtcError
from storage.engine import Database
from storage.notebook import create_entry
from storage.queries.episodes import find_kept, list_episodes
from storage.queries.memory import list_snapshots
from storage.runs.rows import RunRow


@dataclass(frozen=True)
class Chapter:
    """A figure, what to see on it, and where it is shown."""

    title: str
    body: str
    figure: str
    page: str
    query: Query
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the figure, which its recipe needs too."""


def write_story(db: Database, rows: Sequence[RunRow]) -> list[int]:
    """Write an entry for each chapter that these runs can tell, the first chapter newest.

    Args:
        db: Where the runs and their entries stand: the bundle's own database.
        rows: The runs of the study.
    """
    told = _curves(rows)
    for row in rows[:1]:
        told += [_gate(row), *_memory(db, row), *_episode(db, row)]
    made = [_write(db, rows, chapter) for chapter in reversed(told)]
    return [entry for entry in made if entry is not None]


def _write(db: Database, rows: Sequence[RunRow], chapter: Chapter) -> int | None:
    """Write one entry; nothing where its figure cannot be drawn of these runs."""
    cited = [row for row in rows if chapter.query.get("run", [row.id]) == [row.id]]
    kind = find_figure(chapter.figure)
    try:
        figure = kind.make(db, cited, kind.read_options(chapter.facts))
    except EmtcError:
        return None
    view = make_view(page=chapter.page, figure=chapter.figure, query=chapter.query, runs=cited, facts=chapter.facts)
    about = cited[0].id if len(cited) == 1 else None
    return create_entry(db, title=chapter.title, body=chapter.body, run_id=about, figure=freeze(figure), view=view)


def _curves(rows: Sequence[RunRow]) -> list[Chapter]:
    ids = ",".join(row.id for row in rows)
    body = (
        "Each line is a variant over its seeds. Runs of different lengths are compared at the most env steps that all "
        "of them reached; *Win rates* and *Statistics* below the curves say how many seeds a number rests on, and "
        "what so few of them can tell."
    )
    return [Chapter("1. Who learns, and how fast", body, "learning-curves", "compare", {"runs": [ids]})]


def _gate(row: RunRow) -> Chapter:
    body = (
        f"{name_algo(row.algo)}, seed {row.seed}. Δ̄_mem is how much the memory contradicts itself, β̄ the share of the "
        "incentive that passes, τ the temperature that decides between them. Where states never merge, β stays at 1 "
        "and the gate has nothing to do: *Live* says which of the two it is."
    )
    return Chapter("2. The gate at work", body, "gate-dynamics", "live", {"run": [row.id]})


def _memory(db: Database, row: RunRow) -> list[Chapter]:
    snapshots = list_snapshots(db, row.id)["id"]
    if not len(snapshots):
        return []
    last = int(snapshots.iloc[-1])
    body = (
        "Every point is a remembered state, coloured by the highest return ever seen from it. *Has this embedding "
        "collapsed?* answers whether neighbors on this map are worth the same; *Nearest* lists a point's neighbors."
    )
    query = {"run": [row.id], "snap": [str(last)]}
    return [Chapter("3. What it remembers", body, "memory-atlas", "memory", query, {"snapshot": last})]


def _episode(db: Database, row: RunRow) -> list[Chapter]:
    kept = find_kept(db, row.id)
    if not kept:
        return []
    outcomes = list_episodes(db, row.id, "episode", limit=1_000_000).set_index("episode").loc[sorted(kept)]
    won = outcomes.index[outcomes["won"].astype(bool)]
    shown = int(won[0] if len(won) else outcomes["episode_return"].idxmax())
    what = "The first episode that it won" if len(won) else "The best of the kept episodes"
    body = (
        f"{what}, step by step: under one time cursor the team, Δ_mem and β. A step whose Δ_mem is large contradicts "
        "what the memory says of the next state."
    )
    query = {"run": [row.id], "episode": [str(shown)]}
    return [Chapter("4. An episode and its verdicts", body, "trajectory", "replay", query, {"episode": shown})]
