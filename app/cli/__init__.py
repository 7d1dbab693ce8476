"""The `emtc` command. Each module has one command or a few, and is imported only when one of them is run."""
