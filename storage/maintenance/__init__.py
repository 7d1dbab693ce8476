"""Maintenance of a database: sizes, thinning, backup, vacuum and the check of its invariants."""
