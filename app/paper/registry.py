"""Every named figure and table in one place."""

from collections.abc import Callable

import pandas as pd

from app.figures.chart import Chart
from app.figures.cloud import Cloud
from app.figures.heatmap import Heatmap
from app.paper import compare, single, studies, study_tables
from storage.engine import Database
from storage.runs import RunRow

FIGURES: dict[str, Callable[[Database, list[RunRow]], Chart | Cloud | Heatmap]] = {
    **single.FIGURES,
    **compare.FIGURES,
    **studies.FIGURES,
}
TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {**compare.TABLES, **study_tables.TABLES}
