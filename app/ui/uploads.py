"""Uploads on a server with a login: Streamlit takes files from every open page, and a page is open before its login.

So the place where files are kept in memory asks who sends them, from the first page that anybody opens on.
"""

from typing import Any, Final

from streamlit.runtime.scriptrunner import get_script_run_ctx

_ALLOWED: Final = set[str]()


class UploadRefusedError(Exception):
    """A file from a page that nobody has logged in on."""


def allow() -> None:
    """Let this session upload files."""
    if (context := get_script_run_ctx()) is not None:
        _guard(context.uploaded_file_mgr)
        _ALLOWED.add(context.session_id)


def forbid() -> None:
    """Let this session upload nothing, and forget what it has."""
    if (context := get_script_run_ctx()) is not None:
        _guard(context.uploaded_file_mgr)
        _ALLOWED.discard(context.session_id)
        context.uploaded_file_mgr.remove_session_files(context.session_id)


def _guard(manager: Any) -> None:
    """Ask of every file who sends it; a manager is guarded once."""
    if getattr(manager, "is_guarded", False):
        return
    add_file = manager.add_file

    def add_if_allowed(session_id: str, file: Any) -> None:
        if session_id not in _ALLOWED:
            raise UploadRefusedError("Log in before you upload a file.")
        add_file(session_id, file)

    manager.add_file, manager.is_guarded = add_if_allowed, True
