"""SQL queries of users: `query` runs one, `reader_role` is its role on a server, `glossary` describes the tables."""
