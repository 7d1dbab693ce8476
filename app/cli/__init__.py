"""The `emtc` command: one module for a command or a few, each loaded only when it is asked for."""
