"""Passwords of database URLs: they stay inside the process, and no text that leaves it shows one."""

import re

_IN_ADDRESS = re.compile(r"([a-zA-Z][\w+.-]*://[^\s:/@'\"]*:)[^\s'\"]*@")
_IN_SETTINGS = re.compile(r"((?:password|passwd|pwd)\s*=\s*)('[^']*'|[^\s&'\"]+)", re.IGNORECASE)


def hide_passwords(text: str) -> str:
    """Put *** in the place of every password of an address or a connection string in a text."""
    return _IN_SETTINGS.sub(r"\1***", _IN_ADDRESS.sub(r"\1***@", text))
