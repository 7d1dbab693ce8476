"""Schema migrations: `upgrade` copies a SQLite file and then runs the missing migrations of `versions`."""
