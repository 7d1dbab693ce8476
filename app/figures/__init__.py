"""Figures: plain values, and renderers that turn these values into files and pages.

`kinds` defines the value types (charts, clouds, maps, heat maps). `render` draws them with Plotly or Matplotlib; the
scripts in `assets` draw them on a canvas in the browser. Each module of `named` makes some of the named figures. Pages,
files, notebook entries and scripts draw the same values, so this package does not import Streamlit.
"""
