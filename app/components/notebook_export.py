"""Entries as files: Markdown with images, one self-contained page, or a Jupyter notebook that rebuilds the figures."""

from collections.abc import Sequence


def show(ids: Sequence[int], *, key: str, label: str, every: Sequence[int] = ()) -> None:
    """Offer the entries in every format."""
