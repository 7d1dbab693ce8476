"""Every named figure and table in one place."""

from collections.abc import Callable

import pandas as pd

from app.figures.kinds import AnyFigure
from app.paper import compare, memories, single, studies, study_tables
from storage.engine import Database
from storage.runs import RunRow

FIGURES: dict[str, Callable[[Database, list[RunRow]], AnyFigure]] = {
    **single.FIGURES,
    **compare.FIGURES,
    **memories.FIGURES,
    **studies.FIGURES,
}
TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {**compare.TABLES, **study_tables.TABLES}
