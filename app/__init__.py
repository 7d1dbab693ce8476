"""The app: pages, command line, figures, analysis and background jobs.

`analysis` computes numbers from runs, and `figures` draws them. `replay`, `notebook` and `jobs` use both. `ui` (the
only package that imports Streamlit) and `cli` are called by users. Each package imports only packages of lower layers,
which an import contract checks. `Home.py` is the entry script of Streamlit. `warmup.py` compiles Numba kernels before a
run needs them.
"""
