"""Maintenance of a database: sizes, thinning, backup, vacuum and checks.

`check_run` checks whether the rows of a run are consistent. `check_database` checks whether a file from any source can
be opened safely.
"""
