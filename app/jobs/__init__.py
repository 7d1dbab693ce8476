"""The processes behind runs: launch, train, resume, what a living run is asked, checkpoints on their way elsewhere.

`sweeps` trains many runs, `alerts` says which of them need somebody, `projections` lays out memories. They stand
together because each starts, watches or ends a process; what a process computes is the core's or `app.analysis`'s.
Torch is loaded by `training`, in the process that trains, and by nothing that a page imports.
"""
