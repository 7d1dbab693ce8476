"""Named figures and tables. Each module lists its figures in `FIGURES` and its tables in `TABLES`."""
