"""Bundles: runs in one file. `write` makes one, `read` checks and opens it, `bundle_cache` lists the opened ones."""
