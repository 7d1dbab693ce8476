"""Looking after a database: how big it is, what may go, copies and vacuum, and whether what it holds is sound.

`check_run` asks whether the rows of a run agree with each other; `check_database` whether a file of unknown origin may
be opened at all.
"""
