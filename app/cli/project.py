"""`emtc project`: compute and store a projection of a snapshot, the same one that the Memory page shows."""

from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import Progress

from app.analysis.projections.snapshots import (
    EMBEDDERS,
    LANDMARKS,
    METHODS,
    get_phase,
    project_snapshot,
    read_initial_projection,
)
from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, print_json, say
from emtc_core.errors import ConfigError
from storage.engine import Database, open_database
from storage.queries.memory import Projection, list_snapshots
from storage.runs.rows import find_run

_OWN: Final = "own"


def project(
    run: RunPrefix,
    snapshot: Annotated[str, typer.Option(help="latest, or the env step of a snapshot")] = "latest",
    method: Annotated[str, typer.Option(help="tsne, umap or pca")] = "tsne",
    points: Annotated[
        int, typer.Option(help="Landmarks, by return and time; the other nodes are placed by them", min=12)
    ] = LANDMARKS,
    seed: Annotated[int, typer.Option(help="Decides landmarks and layout, and a fresh embedder", min=0)] = 0,
    embedder: Annotated[
        str, typer.Option(help="own, or a fresh one fitted to the snapshot's states: tcse, dcae or random")
    ] = _OWN,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Project the memory of a run to the plane and store the coordinates."""
    for option, value, known in (("--method", method, METHODS), ("--embedder", embedder, (_OWN, *EMBEDDERS))):
        if value not in known:
            raise typer.BadParameter(f"{option} must be one of {', '.join(known)}, got {value!r}.")
    database = open_database(db, create=False)
    snapshot_id = _find_snapshot(database, find_run(database, run).id, snapshot)
    fresh = embedder if embedder != _OWN else None
    with Progress(console=Console(stderr=True)) as bar:
        if fresh:
            _fit(database, snapshot_id, fresh, seed, bar)
        task = bar.add_task(method, total=1.0)
        projection = project_snapshot(
            database,
            snapshot_id,
            method=method,
            n=points,
            seed=seed,
            embedder=fresh,
            progress=lambda part: bar.update(task, completed=part, description=f"{method}: {get_phase(part).name}"),
        )
    if json:
        told = {"projection": projection.id, "snapshot": snapshot_id, "method": method, "seconds": projection.seconds}
        print_json(told | {"nodes": len(projection.coordinates), "params": projection.params})
    else:
        say(_tell(projection))


def _fit(database: Database, snapshot_id: int, kind: str, seed: int, bar: Progress) -> None:
    from app.analysis.projections.embedders import embed_snapshot  # only now: it brings torch

    task = bar.add_task(f"fit {kind}", total=1.0)
    embed_snapshot(database, snapshot_id, kind=kind, seed=seed, progress=lambda part: bar.update(task, completed=part))
    bar.update(task, completed=1.0)


def _tell(projection: Projection) -> str:
    nodes, landmarks = len(projection.coordinates), projection.params["n"]
    start = read_initial_projection(projection.params)
    origin = f"the layout at env step {start.env_step:,}" if start else "PCA"
    how = "" if projection.method == "pca" else f", {landmarks:,} landmarks set out from {origin}"
    return (
        f"Stored projection {projection.id} of snapshot {projection.snapshot_id}: {projection.method} of {nodes:,} "
        f"nodes{how}, in {projection.seconds:.1f} s."
    )


def _find_snapshot(database: Database, run_id: str, wanted: str) -> int:
    known = list_snapshots(database, run_id)
    if known.empty:
        raise ConfigError(
            f"Run {run_id} has no snapshot of a memory yet", hint="Wait for its first, or choose another run."
        )
    if wanted == "latest":
        return int(known["id"].iloc[-1])
    match = known.loc[known["env_step"].astype(str) == wanted, "id"]
    if match.empty:
        steps = ", ".join(str(step) for step in known["env_step"].tolist()[-8:])
        raise ConfigError(f"Run {run_id} has no snapshot at step {wanted}", hint=f"The last ones are at {steps}.")
    return int(match.iloc[0])
