"""Curves of other programs: `read` takes them out of folders and files, by format; `curves` checks them."""
