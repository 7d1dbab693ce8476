"""The value types of figures."""

from app.figures.kinds.chart import Chart
from app.figures.kinds.maps import Cloud, Heatmap, Maps

AnyFigure = Chart | Cloud | Heatmap | Maps
