"""All that imports Streamlit: what a session remembers, cached reads, shared widgets, a folder or a file for each page.

A page (`pages/*.py`) asks `data` and lets its parts draw what `app.figures` made; it computes nothing
itself. Streamlit stays in this room so that every other one serves the command line and scripts as well.
"""
