"""Sweeps: `file` describes what varies, `plan` lists the runs, `search` queues trials, `worker` trains the runs."""
