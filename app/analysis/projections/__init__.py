"""Two-dimensional views of the 4-D memory: instant ones, and slow ones in a background process."""
