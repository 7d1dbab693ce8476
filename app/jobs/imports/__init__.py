"""Import curves of other programs. `read` reads a source; each format has a module; `parsed_run` is shared by all."""
