"""Show runs in another program while they train: `rows` reads the database, `sinks` writes to the program."""
