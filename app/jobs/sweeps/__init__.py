"""Sweeps: `file` describes what varies, `plan` lists the runs, `scheduler`, `worker` and `ray_engine` train them."""
