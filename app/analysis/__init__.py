"""From runs to numbers, for pages, `emtc export`, sweeps and notebooks.

The main path: `comparable` selects runs and their common budget, `variants` groups them by all settings except the
seed, `series` reads one curve per seed, `aggregates` and `intervals` summarize over seeds. Other modules analyze a
memory: `projections`, `selection`, `collapse`, `what_if`. This package does not draw (`app.figures`) and contains no
SQL (`storage.queries`).
"""
