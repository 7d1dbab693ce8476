"""Accept uploaded files only from sessions that are logged in.

A session is one browser tab with a page of the app. Streamlit accepts uploads from every session, also from one that
shows only the login. Its upload manager is therefore wrapped by a check.
"""

from typing import Any, Final

from streamlit.runtime.scriptrunner import get_script_run_ctx

_SESSIONS_WITH_UPLOADS: Final = set[str]()
"""Ids of the sessions that may upload files."""


class UploadRefusedError(Exception):
    """An upload from a session that is not logged in."""


def allow_uploads() -> None:
    """Allow this session to upload files."""
    if (context := get_script_run_ctx()) is not None:
        _wrap_upload_manager(context.uploaded_file_mgr)
        _SESSIONS_WITH_UPLOADS.add(context.session_id)


def forbid_uploads() -> None:
    """Forbid uploads from this session, and delete the files it has uploaded."""
    if (context := get_script_run_ctx()) is not None:
        _wrap_upload_manager(context.uploaded_file_mgr)
        _SESSIONS_WITH_UPLOADS.discard(context.session_id)
        context.uploaded_file_mgr.remove_session_files(context.session_id)


def _wrap_upload_manager(manager: Any) -> None:
    """Replace `add_file` of the manager, so that it refuses files from other sessions. A second call has no effect."""
    if getattr(manager, "is_guarded", False):
        return
    add_file = manager.add_file

    def add_if_allowed(session_id: str, file: Any) -> None:
        if session_id not in _SESSIONS_WITH_UPLOADS:
            raise UploadRefusedError("Log in before you upload a file.")
        add_file(session_id, file)

    manager.add_file = add_if_allowed
    manager.is_guarded = True
