"""The names that scripts of users depend on: commands, options, columns, figures, tables, algorithms."""

from typing import Any

import pytest
from typer.main import get_command

from app.cli.export import ENCODER_TIMING
from app.cli.main import COMMANDS, make_app
from app.figures.registry import FIGURES, TABLES
from emtc_core.config.run import list_algos
from storage.models import Base
from storage.queries.tables import TABLE_NAMES as RAW_TABLES

COMMAND_OPTIONS = {
    "train": "--env --map --algo --steps --seed --config --set --detach --json --db",
    "runs": "--json --where --db",
    "show": "--db",
    "stop": "--db",
    "pause": "--db",
    "resume": "--db",
    "delete": "--db",
    "sweep": "--engine --jobs --address --db",
    "project": "--snapshot --method --db",
    "export": "--figure --table --format --out --db",
    "envs": "--json",
    "tag": "--db",
    "note": "--db",
    "archive": "--db",
    "sql": "--db",
    "db check": "--db",
    "db stats": "--db",
    "db thin": "--db",
    "db vacuum": "--db",
    "db backup": "--db",
    "db reader": "--db",
    "worker": "--db --once",
    "bundle": "--out --thin --db",
    "open": "",
    "app": "--db",
    "evaluate": "--checkpoint --episodes --json --db",
    "import": "--format --db",
    "mirror": "--to --out --db",
    "diff": "--db",
    "ask": "--db",
    "hide": "--db",
    "watch": "--db",
    "notebook": "--db",
    "doctor": "--json",
}
COLUMNS = {
    "runs": "id name env map algo seed config status env_steps target_steps created_at started_at ended_at "
    "heartbeat_at pid host device versions tags notes error sweep_id",
    "episodes": "run_id episode first_env_step length episode_return won epsilon trajectory",
    "eval_episodes": "run_id env_step episode length episode_return won trajectory",
    "transitions": "run_id env_step episode t reward h h_next delta_mem beta tau slot next_slot",
    "gate_stats": "run_id env_step tau memory_size desirable_fraction",
    "metrics": "run_id env_step name value",
    "evaluations": "run_id env_step episodes wins win_rate return_mean return_std length_mean distinct",
    "snapshots": "id run_id env_step size slot embedding H xi n_call n_xi t reward idx_next episode delta_mem beta "
    "state",
    "projections": "id snapshot_id method params coordinates seconds",
    "entries": "id created_at updated_at run_id title body figure view",
}
ALGORITHMS = "emtc-qplex emtc-cds emu-qplex emu-cds qplex cds qmix vdn dmix mappo emc"
FIGURE_NAMES = (
    "learning-curves mu-w-by-delta embedding-comparison ablation strategy-divergence gate-dynamics lambda-heatmap "
    "tau-study augmentation baselines memory-atlas"
)
TABLE_NAMES = "win-rates mu-w-embedders augmentation encoder-timing runs transitions episodes evaluations metrics gate"


def find_command(words: str) -> Any:
    name, *inner = words.split()
    command = get_command(make_app(name)).commands[name]  # type: ignore[attr-defined]
    for word in inner:
        command = command.commands[word]
    return command


@pytest.mark.parametrize("words", COMMAND_OPTIONS)
def test_a_command_has_its_options(words: str) -> None:
    assert words.split()[0] in COMMANDS
    options = {flag for option in find_command(words).params for flag in option.opts}
    assert set(COMMAND_OPTIONS[words].split()) - options == set()


@pytest.mark.parametrize("table", COLUMNS)
def test_a_table_has_its_columns(table: str) -> None:
    assert set(COLUMNS[table].split()) - set(Base.metadata.tables[table].columns.keys()) == set()


def test_algorithms_figures_and_tables_have_their_names() -> None:
    assert set(ALGORITHMS.split()) - set(list_algos()) == set()
    assert set(FIGURE_NAMES.split()) - set(FIGURES.keys()) == set()
    assert set(TABLE_NAMES.split()) - {*TABLES, *RAW_TABLES, ENCODER_TIMING} == set()
