"""The schema's history: `upgrade` runs the missing revisions of `versions`, after it has copied a SQLite file."""
