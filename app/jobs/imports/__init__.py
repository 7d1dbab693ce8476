"""Curves of other programs: `read` folders and `tables` files, by format; `curves` checks them."""
