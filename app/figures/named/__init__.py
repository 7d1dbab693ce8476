"""The named figures and tables of the paper; a new one is a module here that lists it in `FIGURES` or `TABLES`."""
