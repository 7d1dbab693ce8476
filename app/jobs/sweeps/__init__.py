"""Sweeps (sets of runs): `file` parses the sweep file, `plan` lists its runs, `worker` trains them.

`search` chooses the settings of the runs (trials) with Optuna; `study` is its interface to Optuna. `ray_engine` starts
workers on a Ray cluster. `control` creates, starts, stops and continues sweeps.
"""
