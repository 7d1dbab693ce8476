"""Every kind of figure that can be exported."""

from app.figures.kinds.chart import Chart
from app.figures.kinds.cloud import Cloud
from app.figures.kinds.heatmap import Heatmap
from app.figures.kinds.maps import Maps

AnyFigure = Chart | Cloud | Heatmap | Maps
