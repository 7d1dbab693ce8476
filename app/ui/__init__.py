"""All code that imports Streamlit: page state, cached reads, shared widgets, and one module or package per page.

A page (`pages/*.py`) reads through `data` and draws figures made by `app.figures`. It computes nothing. No other
package imports Streamlit, so that the command line and scripts can use them.
"""
