"""Read-only queries. The first line of each docstring is the question that the query answers.

`runs`: stored runs, their configurations and resumes. `run_search`: filters, sorts and pages of runs. `search_terms`:
the search language. `curves`: evaluations and metrics over env steps. `gate`: what the gate computed. `gate_progress`:
the same by part of a run and from the first win on. `gate_state`: whether a gate is active, and why not. `episodes`:
trajectories of training episodes and playbacks. `episode_search`: searches of them. `memory`: snapshots.
`projections`: projections of snapshots. `tables`: raw rows in parts.
"""
