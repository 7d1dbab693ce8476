"""Runs shown in another program as they train: `rows` reads the database, `sinks` write what a program lacks."""
