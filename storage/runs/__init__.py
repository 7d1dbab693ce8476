"""Runs and sweeps as things that live: made, claimed, owned, steered, rewound, labelled, removed.

`rows` finds a run and tells its state, `lifecycle` what may follow what, `ownership` who has it. The others change it:
`changes` (create, start, end), `claims` and `sweeps` (the queue), `control` (commands and heartbeats), `rewind`,
`labels`, `removal`. What a run recorded is written in `recording` and read in `queries`.
"""
