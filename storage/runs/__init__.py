"""Runs and sweeps: create, claim, train, control, rewind, label and delete them.

`status` computes the status of a run and lists the actions that each status allows. `claims` decides who trains a run:
`claim_run` is the only way to take one over. `rows` finds a run. The other modules change runs: `changes` (create,
start, finish), `sweeps` (the queue), `control` (commands and heartbeats), `labels`, `removal` (rewind, delete) and
`imports`. `storage.recording` writes the data that a run records, and `storage.queries` reads it.
"""
