"""Renderers: make a Plotly figure, a Matplotlib figure or a file from the value types in `app.figures.kinds`."""
