"""What did the gate compute for the nodes of the memory and for the transitions of a run?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Connection, func, select
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.types import Double

from storage.engine import Database
from storage.frames import read_frame
from storage.models import GateStats, Transition

if TYPE_CHECKING:
    import pandas as pd


def gate_stats(db: Database, run_id: str, after: int = 0) -> pd.DataFrame:
    """How consistent is the whole memory?

    Source: table `gate_stats`.

    Args:
        db: An open database.
        run_id: The run.
        after: Read only later env steps.

    Returns:
        One row per report of the gate: env_step [env steps], delta_mem_mean, delta_mem_q05 q25 q50 q75 q95 [return],
        beta_mean, beta_q05 … q95 (dimensionless), tau [return], memory_size [nodes], desirable_fraction.
    """
    columns = [column for column in GateStats.__table__.columns if column.name != "run_id"]
    statement = select(*columns).where(GateStats.run_id == run_id, GateStats.env_step > after)
    with db.read() as connection:
        return read_frame(connection, statement.order_by(GateStats.env_step))


def newest_transitions(db: Database, run_id: str, until: int, limit: int) -> pd.DataFrame:
    """What did the gate compute for the newest transitions?

    Source: table `transitions`.

    Args:
        db: An open database.
        run_id: The run.
        until: Last env step.
        limit: Maximum number of rows.

    Returns:
        One row per transition, by env step: episode, reward [reward], h, h_next, delta_mem [return], beta
        (dimensionless), tau [return], slot, next_slot. There are no rows if thinning has deleted the transitions.
    """
    table = Transition
    gate_values = (table.reward, table.h, table.h_next, table.delta_mem, table.beta, table.tau)
    columns = (table.episode, *gate_values, table.slot, table.next_slot)
    newest = (table.run_id == run_id, table.env_step.between(until - limit + 1, until))
    with db.read() as connection:
        return read_frame(connection, select(*columns).where(*newest).order_by(table.env_step))


def has_transitions(connection: Connection, run_id: str) -> bool:
    """Return whether the transitions of a run are stored. After thinning only their sums are."""
    first = select(Transition.run_id).where(Transition.run_id == run_id, Transition.env_step == 1)
    return connection.execute(first).first() is not None


def select_ratio(total: InstrumentedAttribute[float], count: InstrumentedAttribute[int]) -> ColumnElement[float]:
    """Return the SQL expression of a mean: the sum of sums divided by the sum of counts; NULL without a value."""
    return func.sum(total, type_=Double()) / func.nullif(func.sum(count, type_=Double()), 0.0, type_=Double())
