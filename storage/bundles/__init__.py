"""Bundles: runs in one file. `write` exports and imports runs, `read` checks and unpacks, `bundle_cache` lists them."""
