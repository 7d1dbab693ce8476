"""Runs in one file: `write` makes it, and adds it to a database; `read` opens a stranger's, `bundle_cache` keeps it."""
