"""What people may write about a run: the rules of names, tags and notes."""

from collections.abc import Sequence
from typing import Any

from emtc_core.errors import RunStateError
from storage.guards import shorten

LONGEST_TAG, MOST_TAGS, LONGEST_NOTE = 64, 50, 20_000


def check_labels(name: str | None, tags: Sequence[str] | None, notes: str | None) -> dict[str, Any]:
    """Return the columns that are to change; None changes nothing.

    Raises:
        RunStateError: If a tag is none, the name is empty or the note too long.
    """
    if name is not None and not name.strip():
        raise RunStateError("The name of a run must not be empty.")
    if notes is not None:
        check_note(notes)
    values = {"name": name, "tags": None if tags is None else check_tags(tags), "notes": notes}
    return {key: value for key, value in values.items() if value is not None}


def check_note(text: str) -> str:
    """Return a note, or refuse one that is too long.

    Raises:
        RunStateError: If it has more than LONGEST_NOTE characters.
    """
    if len(text) > LONGEST_NOTE:
        raise RunStateError(f"A note holds at most {LONGEST_NOTE:,} characters, got {len(text):,}.")
    return text


def check_tags(tags: Sequence[str]) -> list[str]:
    """Return tags sorted and each once, or refuse what is none.

    Raises:
        RunStateError: If one is empty, longer than LONGEST_TAG or holds a comma or a sign that cannot be printed, or
            there are more than MOST_TAGS.
    """
    for tag in tags:
        if not tag.strip() or tag != tag.strip() or len(tag) > LONGEST_TAG or "," in tag or not tag.isprintable():
            raise RunStateError(
                f"A tag is 1 to {LONGEST_TAG} printable characters without a comma or a space at its ends, "
                f"got {shorten(tag)}."
            )
    if len(set(tags)) > MOST_TAGS:
        raise RunStateError(f"A run carries at most {MOST_TAGS} tags, got {len(set(tags))}.")
    return sorted(set(tags))
