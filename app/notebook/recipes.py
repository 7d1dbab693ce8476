"""A pinned view → Python that draws the same figure from the database, with this project's public functions.

A recipe is the body of a function of `db` that returns a figure. Every value from a view is written as a Python
literal, so nothing that a stranger typed becomes code.
"""

from collections.abc import Callable
from math import isfinite
from typing import Final

from app.analysis.projections.linear import NO_TURN
from app.analysis.quantities import find_quantity
from app.analysis.selection import Choice
from app.figures.registry import FIGURES
from app.notebook.frozen import Figure
from app.notebook.view import View
from emtc_core.errors import EmtcError

IMPORTS: Final = """\
from app.figures.kinds.chart import Mark
from app.figures.live import GATE_METRICS, contrast_chance, draw_gate_dynamics, draw_gate_effect
from app.analysis.success import SUCCESS_RATE
from app.figures.live import (TRAINING_RATES, draw_metrics, draw_outcomes)
from app.figures.memory import draw_memory
from app.figures.render.plotly_view import to_plotly
from app.figures.selection import draw_selection
from app.figures.trajectory import draw_trajectory
from app.figures.what_if import draw_what_if
from app.notebook.frozen import thaw, unpack
from app.jobs.projections import project_snapshot, sample_rows
from app.analysis.projections.linear import AXIS_PAIRS, Drawn, draw_axes, draw_pca
from app.replay.replay import make_replay, tell_apart
from app.replay.side import join_values
from app.figures.learning_curves import draw_comparison
from app.analysis.quantities import find_quantity
from app.figures.registry import FIGURES
from app.analysis.selection import Choice
from app.analysis.series import read_comparison
from app.analysis.statistics import Reading
from app.analysis.success import success_threshold
from app.analysis.what_if import Question, answer, merge_nodes, read_rules, read_stream
from emtc_core.errors import EmtcError
from storage import open_database
from storage.queries.curves import evaluations, metric, training_episodes
from storage.queries.episodes import get_playback, get_trajectory
from storage.queries.gate import gate_stats
from storage.queries.memory import get_snapshot
from storage.queries.runs import list_resumes
from storage.runs.rows import find_run
"""
_GATE_ROWS = "metrics = metric(db, run.id, GATE_METRICS)"
_NAMES = {"tsne": "t-SNE", "umap": "UMAP"}


def make_recipe(view: View, figure: Figure) -> list[str] | None:
    """Write the lines that rebuild a figure; None if the view does not say how."""
    write = _compare if view.page == "compare" else _RECIPES.get((view.page, view.figure), _from_registry)
    try:
        return write(view, figure)
    except (EmtcError, KeyError, IndexError, TypeError, ValueError):  # a view of another version, or a stranger's
        return None


def _from_registry(view: View, figure: Figure) -> list[str] | None:
    if view.figure not in FIGURES or not view.run_ids:
        return None
    return [_runs(view), f"return FIGURES[{view.figure!r}].make(db, runs)"]


def _compare(view: View, figure: Figure) -> list[str]:
    quantity = find_quantity(str(view.facts["quantity"]))
    reading = f"Reading({str(view.facts['center'])!r}, {str(view.facts['band'])!r})"
    per_seed = view.query.get("each") == ["true"]
    unfinished = view.query.get("unfinished") == ["true"]
    return [
        _runs(view),
        f"found = read_comparison(db, runs, find_quantity({quantity.key!r}), include_unfinished={unfinished})",
        f"return draw_comparison(found, {reading}, per_seed={per_seed}){_within(view)}",
    ]


def _runs(view: View) -> str:
    ids = ", ".join(repr(run_id) for run_id in view.run_ids)
    return f"runs = [find_run(db, run_id) for run_id in [{ids}]]"


def _gate_dynamics(view: View, figure: Figure) -> list[str]:
    drawn = "draw_gate_dynamics(gate_stats(db, run.id), metrics, run=run.name, marks=marks)"
    return [*_run(view), _GATE_ROWS, f"return {drawn}{_within(view)}"]


def _gate_effect(view: View, figure: Figure) -> list[str]:
    return [*_run(view), _GATE_ROWS, f"return draw_gate_effect(metrics, run=run.name, marks=marks){_within(view)}"]


def _outcomes(view: View, figure: Figure) -> list[str]:
    return [
        *_run(view),
        "episodes = training_episodes(db, run.id, points=1000)",
        "rates = metric(db, run.id, [*TRAINING_RATES, SUCCESS_RATE])",
        "rule = {'threshold': success_threshold(run.config), 'metrics': rates}",
        f"return draw_outcomes(evaluations(db, run.id), episodes, run=run.name, marks=marks, **rule){_within(view)}",
    ]


def _metrics(view: View, figure: Figure) -> list[str]:
    names = [str(name) for name in view.facts["metrics"]]
    return [
        *_run(view),
        f"names = {names!r}",
        "compared = {'marks': marks, 'chance': contrast_chance(run.config)}",
        f"return draw_metrics(metric(db, run.id, names), names, run=run.name, **compared){_within(view)}",
    ]


def _memory_atlas(view: View, figure: Figure) -> list[str]:
    snapshot, n, seed = (int(view.facts[name]) for name in ("snapshot", "n", "seed"))
    drawn = int(view.facts.get("drawn", n))
    return [
        f"snapshot = get_snapshot(db, {snapshot})",
        f"rows = sample_rows(snapshot, n={drawn or 'snapshot.size'}, seed={seed})",
        *_project(view, snapshot, n, seed),
        *_choose(view),
        "return draw_memory(",
        "    snapshot, rows, drawn.coordinates[rows], x_label=drawn.x_label, y_label=drawn.y_label,",
        f"    color={str(view.facts['color'])!r},",
        *([f"    colors={tuple(map(str, view.facts['scale']))!r},"] if "scale" in view.facts else []),
        f"    title={figure.title!r},",
        f"    caption={figure.caption!r},",
        ")",
    ]


def _project(view: View, snapshot: int, n: int, seed: int) -> list[str]:
    method = str(view.facts["method"])
    if method == "axes":
        return [f"drawn = draw_axes(snapshot.embedding, AXIS_PAIRS[{int(view.facts['pair'])}])"]
    if method == "pca":
        fitted = "" if view.facts.get("fit") == "all" else ", fit_on=rows"
        first, second = (-1 if int(sign) < 0 else 1 for sign in view.facts.get("turn", NO_TURN))
        turned = "" if (first, second) == NO_TURN else f", turn=({first}, {second})"
        return [f"drawn = draw_pca(snapshot.embedding{fitted}{turned})"]
    label = _NAMES[method]
    return [
        f"projection = project_snapshot(db, {snapshot}, method={method!r}, n={n or 'snapshot.size'}, seed={seed})",
        f'drawn = Drawn(projection.coordinates, "{label} 1 [1]", "{label} 2 [1]")',
    ]


def _choose(view: View) -> list[str]:
    """Keep what lasso and ranges keep; also the nodes without a place go."""
    if "drawn" not in view.facts:
        return []
    choice = Choice.parse(str(view.facts["lasso"]), str(view.facts["ranges"]))
    return [
        f"choice = Choice({choice.polygon!r}, {dict(choice.ranges)!r})",
        "rows = rows[choice.mask(snapshot, drawn.coordinates)[rows]]",
    ]


def _selection(view: View, figure: Figure) -> list[str]:
    snapshot, n, seed = (int(view.facts[name]) for name in ("snapshot", "n", "seed"))
    choice = Choice.parse(str(view.facts["lasso"]), str(view.facts["ranges"]))
    return [
        *_run(view)[:1],
        f"snapshot = get_snapshot(db, {snapshot})",
        *_project(view, snapshot, n, seed),
        f"choice = Choice({choice.polygon!r}, {dict(choice.ranges)!r})",
        "everywhere = Choice().mask(snapshot, drawn.coordinates)",
        "chosen = choice.mask(snapshot, drawn.coordinates)",
        "return draw_selection(snapshot, chosen, everywhere, run=run.name, words=choice.words)",
    ]


def _trajectory(view: View, figure: Figure) -> list[str]:
    run_id, episode = view.run_ids[0], int(view.facts["episode"])
    if "env_step" in view.facts:
        read = f"episode = get_playback(db, {run_id!r}, {int(view.facts['env_step'])}, {episode})"
    else:
        read = f"episode = get_trajectory(db, {run_id!r}, {episode})"
    return [
        read,
        f"title = {figure.title!r}",
        "verdicts = {'h': episode.h, 'delta_mem': episode.delta_mem, 'beta': episode.beta}",
        "return draw_trajectory(title=title, reward=episode.reward, **verdicts)",
    ]


def _two_trajectories(view: View, figure: Figure) -> list[str]:
    pair = [
        (str(side["run"]), int(side["episode"]), int(side["env_step"]) if "env_step" in side else None)
        for side in view.facts["pair"]
    ]
    if not 1 <= len(pair) <= 2:
        raise ValueError("two episodes stand beside each other")
    return [
        "replays = []",
        f"for run_id, number, env_step in {pair!r}:",
        "    training = env_step is None",
        "    key = (run_id, number) if training else (run_id, env_step, number)",
        "    episode = get_trajectory(db, *key) if training else get_playback(db, *key)",
        "    replays.append(make_replay(find_run(db, run_id), episode, training=training))",
        "return join_values([replay.side for replay in tell_apart(replays)])",
    ]


def _what_if(view: View, figure: Figure) -> list[str]:
    asked = view.facts["question"]
    factor = None if asked["delta_factor"] is None else float(asked["delta_factor"])
    fixed = None if asked["tau_fixed"] is None else float(asked["tau_fixed"])
    question = (float(asked["tau_factor"]), fixed, factor, str(asked["lookup"]), str(asked["successor"]))
    merged = "None" if factor is None else f"merge_nodes(snapshot, rules, {factor!r})"
    snapshot = int(view.facts["snapshot"])
    return [
        f"run = find_run(db, {view.run_ids[0]!r})",
        f"snapshot = get_snapshot(db, {snapshot})",
        "rules = read_rules(run.config)",
        "stream = read_stream(db, run.id, rules, until=snapshot.env_step)",
        f"merged = {merged}",
        *_choose_rows(view, snapshot),
        f"found = answer(snapshot, stream, rules, Question{question!r}, merged=merged, rows=rows)",
        "return draw_what_if(found, run=run.name, env_step=snapshot.env_step)",
    ]


def _choose_rows(view: View, snapshot: int) -> list[str]:
    """Find the rows of a selection, or take all of them."""
    if "method" not in view.facts:
        return ["rows = None"]
    choice = Choice.parse(str(view.facts["lasso"]), str(view.facts["ranges"]))
    return [
        *_project(view, snapshot, int(view.facts["n"]), int(view.facts["seed"])),
        f"choice = Choice({choice.polygon!r}, {dict(choice.ranges)!r})",
        "rows = choice.mask(snapshot, drawn.coordinates).nonzero()[0]",
    ]


def _run(view: View) -> list[str]:
    return [
        f"run = find_run(db, {view.run_ids[0]!r})",
        'marks = tuple(Mark(step, "resumed") for step in list_resumes(db, run.id)["env_step"])',
    ]


def _within(view: View) -> str:
    """Cut to the x window of the URL, "from-to"."""
    low, _, high = (view.query.get("x") or [""])[0].partition("-")
    if not low or not high or not isfinite(float(low)) or not isfinite(float(high)):
        return ""
    return f".within(({float(low)!r}, {float(high)!r}))"


_RECIPES: dict[tuple[str, str], Callable[[View, Figure], list[str] | None]] = {
    ("live", "gate-dynamics"): _gate_dynamics,
    ("live", "gate-effect"): _gate_effect,
    ("live", "learning-curves"): _outcomes,
    ("live", "metrics"): _metrics,
    ("memory", "memory-atlas"): _memory_atlas,
    ("memory", "memory-selection"): _selection,
    ("memory", "trajectory"): _trajectory,
    ("memory", "what-if"): _what_if,
    ("replay", "trajectory"): _trajectory,
    ("replay", "trajectories"): _two_trajectories,
}
