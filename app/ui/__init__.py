"""All that imports Streamlit: what a session remembers, cached reads, shared widgets, one folder for each page.

A page (`pages/*.py`) asks `data` and lets the parts in its folder draw what `app.figures` made; it computes nothing
itself. Streamlit stays in this room so that every other one serves the command line and scripts as well.
"""
