"""Projections of the 4-D embedding to the plane: fast ones, and slow ones that run in a background process."""
