"""Show runs in another program while they train: `rows` reads the database, each sink writes to one program."""
