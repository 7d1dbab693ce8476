"""Drawable values in; a Plotly figure, a Matplotlib figure or the bytes of a file out."""
