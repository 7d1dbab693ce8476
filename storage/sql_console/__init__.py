"""SQL queries of users: `question` starts `worker`, a process that can only read. `glossary` describes the tables."""
