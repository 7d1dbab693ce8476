"""`emtc project`: compute and store a projection of a snapshot. The page Memory shows it.

A snapshot contains the nodes of the episodic memory at one env step. A node is one stored state with its embedding. The
projection gives each node two coordinates. t-SNE and UMAP lay out a sample of nodes, the landmarks.
"""

from typing import Annotated, Final

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from app.analysis.projections.snapshots import (
    EMBEDDERS,
    LANDMARKS,
    METHODS,
    describe_equal_embeddings,
    get_phase,
    project_snapshot,
    read_initial_projection,
)
from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, RunPrefix, Where, check_choice, choose_run
from app.cli.output import print_json, print_message
from emtc_core.errors import ConfigError
from emtc_core.kernel_cache import check_kernel_cache
from storage.engine import Database, open_database
from storage.queries.memory import get_snapshot, list_snapshots
from storage.queries.projections import Projection

_RUN_EMBEDDER: Final = "own"
"""Value of --embedder that selects the embedder with which the run was trained."""

_MAX_LISTED: Final = 8
"""Maximum number of snapshots that an error message lists."""


def project(
    run: RunPrefix = None,
    where: Where = None,
    snapshot: Annotated[str, typer.Option(help="latest, or the env step of a snapshot")] = "latest",
    method: Annotated[str, typer.Option(help="tsne, umap or pca")] = "tsne",
    points: Annotated[
        int,
        typer.Option(
            help="Number of landmarks, sampled by return and time; the other nodes are placed relative to them", min=12
        ),
    ] = LANDMARKS,
    seed: Annotated[int, typer.Option(help="Seed of the landmarks, the layout and a newly fitted embedder", min=0)] = 0,
    embedder: Annotated[
        str, typer.Option(help="own (of the run), or one fitted to the states of the snapshot: tcse, dcae or random")
    ] = _RUN_EMBEDDER,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Project the memory of a run to two dimensions and store the coordinates."""
    check_choice("method", method, METHODS)
    check_choice("embedder", embedder, (_RUN_EMBEDDER, *EMBEDDERS))
    check_kernel_cache("emtc_core", "umap")
    database = open_database(db, create=False)
    snapshot_id, memory_size = _find_snapshot(database, choose_run(database, run, where).id, snapshot)
    fitted_embedder = embedder if embedder != _RUN_EMBEDDER else None
    with Progress(console=Console(stderr=True)) as bar:
        if fitted_embedder:
            embedding = _fit_and_embed(database, snapshot_id, fitted_embedder, seed, bar)
        else:
            embedding = get_snapshot(database, snapshot_id).embedding
        task = bar.add_task(method, total=1.0)

        def show_progress(fraction: float) -> None:
            phase = get_phase(fraction).name  # the phases take fixed parts of the progress
            bar.update(task, completed=fraction, description=f"{method}: {phase}")

        projection = project_snapshot(
            database,
            snapshot_id,
            method=method,
            n=points,
            seed=seed,
            embedder=fitted_embedder,
            progress=show_progress,
        )
    if json:
        print_json(
            {
                "projection": projection.id,
                "snapshot": snapshot_id,
                "method": method,
                "seconds": projection.seconds,
                "nodes": len(projection.coordinates),
                "memory_size": memory_size,
                "params": projection.params,
            }
        )
    else:
        print_message(_describe(projection, memory_size))
    warning = describe_equal_embeddings(embedding)  # empty if enough nodes have different embeddings
    if warning:
        print_message(warning)


def _fit_and_embed(database: Database, snapshot_id: int, kind: str, seed: int, bar: Progress) -> NDArray[np.float32]:
    """Return the embedding of a snapshot's nodes by a newly fitted embedder."""
    from app.analysis.projections.embedders import embed_snapshot  # imports torch

    task = bar.add_task(f"fit {kind}", total=1.0)
    embedding = embed_snapshot(
        database, snapshot_id, kind=kind, seed=seed, progress=lambda fraction: bar.update(task, completed=fraction)
    )
    bar.update(task, completed=1.0)
    return embedding.coordinates


def _describe(projection: Projection, memory_size: int) -> str:
    n_nodes = len(projection.coordinates)
    sample = f" (a sample of a memory of {memory_size:,})" if memory_size > n_nodes else ""
    details = ""
    if projection.method != "pca":
        initial = read_initial_projection(projection.params)
        origin = f"the layout at env step {initial.env_step:,}" if initial else "PCA"
        details = f", {projection.params['n']:,} landmarks initialised with {origin}"
    return (
        f"Stored projection {projection.id} of snapshot {projection.snapshot_id}: {projection.method} of {n_nodes:,} "
        f"nodes{sample}{details}, in {projection.seconds:.1f} s."
    )


def _find_snapshot(database: Database, run_id: str, env_step: str) -> tuple[int, int]:
    """Find the snapshot at an env step, or the last one for `latest`.

    Returns:
        The id of the snapshot, and the number of nodes of the whole memory at that time.

    Raises:
        ConfigError: If the run has no such snapshot.
    """
    snapshots = list_snapshots(database, run_id)
    if snapshots.empty:
        raise ConfigError(
            f"Run {run_id} has no snapshot of its memory yet", hint="Wait for the first one, or choose another run."
        )
    if env_step == "latest":
        matching = snapshots.tail(1)
    else:
        matching = snapshots.loc[snapshots["env_step"].astype(str) == env_step]
    if matching.empty:
        steps = ", ".join(str(step) for step in snapshots["env_step"].tolist()[-_MAX_LISTED:])
        raise ConfigError(
            f"Run {run_id} has no snapshot at step {env_step}", hint=f"The last snapshots are at {steps}."
        )
    return int(matching["id"].iloc[0]), int(matching["memory_size"].iloc[0])
