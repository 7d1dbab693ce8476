"""From numbers to pictures: every figure once, as plain values, and the renderers that turn values into files.

`kinds` says what can be drawn (curves, clouds, heat maps, maps), `render` draws it with Plotly or Matplotlib, `assets`
in the browser on a canvas; `named` and the modules beside it make one figure each. Values come first so that a page, a
file, a notebook entry and a script show the same picture; so nothing here knows Streamlit.
"""
