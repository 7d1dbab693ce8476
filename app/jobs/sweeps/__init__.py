"""Sweeps: a file names what varies, a plan lists its runs, a scheduler trains them."""
