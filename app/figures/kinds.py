"""Every kind of figure that can be exported."""

from app.figures.chart import Chart
from app.figures.cloud import Cloud
from app.figures.heatmap import Heatmap
from app.figures.maps import Maps

AnyFigure = Chart | Cloud | Heatmap | Maps
