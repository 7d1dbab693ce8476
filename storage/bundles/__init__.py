"""Runs in one file: `write` makes it, `read` opens a stranger's, `bundle_cache` keeps it, `import_bundle` adds it."""
