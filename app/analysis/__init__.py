"""From runs to numbers, for pages, `emtc export`, sweeps and notebooks.

The main path: `curves` reads one curve per run, `variants` groups the runs by all settings except the seed, `results`
selects the runs that count and their common budget, `aggregates` and `intervals` summarize over seeds. Other modules
analyze the episodic memory of one run: `projections`, `selection`, `collapse`, `what_if`. This package does not draw
(`app.figures`) and contains no SQL (`storage.queries`).
"""
