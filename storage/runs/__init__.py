"""Runs and sweeps: create, claim, train, control, rewind, label and delete them.

`rows` finds a run and computes its live status. `lifecycle` defines the states, the allowed transitions and the owner
of a run. The other modules change runs: `changes` (create, start, finish), `claims` and `sweeps` (the queue), `control`
(commands and heartbeats), `labels`, `removal` (rewind, delete) and `imports`. `storage.recording` writes the data that
a run records, and `storage.queries` reads it.
"""
