"""Import curves of other programs. `read` reads a source, one module per format; `parsed_run` has what they share."""
