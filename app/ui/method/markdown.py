"""Tables of the Method page: Markdown, whose text wraps and can be searched in the browser."""

from collections.abc import Iterable, Sequence


def write_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; its cells are safe already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
