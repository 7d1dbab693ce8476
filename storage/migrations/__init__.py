"""The schema's history: `upgrade` runs the missing revisions of `versions`, after `backup` has copied a SQLite file."""
