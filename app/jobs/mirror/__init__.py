"""Runs shown in another program as they train: `rows` reads the database, `sinks` write, `follow` loops."""
