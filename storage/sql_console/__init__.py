"""SQL that somebody types: `question` starts `worker`, a process that can only read; `glossary` explains the tables."""
