"""Read-only queries. The first line of each docstring is the question that the query answers.

`runs`: lists and searches of runs. `curves`: evaluations and metrics over env steps. `gate`: what the gate did.
`episodes`: training episodes and playbacks. `memory`: snapshots and projections. `tables`: raw rows in parts.
`search_terms`: the search language.
"""
