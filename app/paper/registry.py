"""Every named figure and table in one place."""

from collections.abc import Callable

import pandas as pd

from app.figures.chart import Chart
from app.figures.cloud import Cloud
from app.paper import compare, single
from storage.engine import Database
from storage.runs import RunRow

FIGURES: dict[str, Callable[[Database, list[RunRow]], Chart | Cloud]] = {**single.FIGURES, **compare.FIGURES}
TABLES: dict[str, Callable[[Database], pd.DataFrame]] = {**compare.TABLES}
