"""Runs and sweeps as things that live: made, claimed, owned, steered, rewound, labelled, removed.

`rows` finds a run and tells its state, `lifecycle` what may follow what and who has it. The others change it:
`changes` (create, start, end), `claims` and `sweeps` (the queue), `control` (commands, answers and heartbeats),
`labels`, `removal` (go back, delete). What a run recorded is written in `recording` and read in `queries`.
"""
