"""Every kind of figure that can be exported."""

from app.figures.kinds.chart import Chart
from app.figures.kinds.cloud import Cloud, Maps
from app.figures.kinds.heatmap import Heatmap

AnyFigure = Chart | Cloud | Heatmap | Maps
