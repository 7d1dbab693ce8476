"""Buttons that make a file when they are pressed, and the browser's download of the file.

`st.download_button` with a function as its data loses files: each execution of a fragment replaces the function, and a
press that was sent before refers to the former one. Here a normal button stores a request. A fragment without a timer
makes the file, and the session stores it until the browser has saved it.
"""

import json
from collections.abc import Callable
from functools import partial
from itertools import count
from time import time
from typing import Any, Final, NamedTuple

import streamlit as st
from streamlit.components.v2 import component

from app.figures.assets import read_asset
from app.ui import messages

FRAGMENT: Final = "files"
"""Key of the fragment that makes the files."""
# Keys of Streamlit's session state: the requested files, and number → data of the files that are not saved yet.
_REQUESTS: Final = "requested_files"
_FILES: Final = "files_to_save"
_numbers: Final = count(int(time() * 1000))
"""Numbers of files. The browser saves each number once. They start at the current time [ms], so that they differ from
the numbers of an earlier server."""
_save: Final = component("emtc_lab_file", js=read_asset("file.js"))


class _Request(NamedTuple):
    """A file to make."""

    make: Callable[[], bytes | str]
    name: str
    type: str


def button(label: str, make: Callable[[], bytes | str], *, file_name: str, mime: str, key: str, **options: Any) -> None:
    """Draw a button that makes a file and saves it in the browser.

    Args:
        label: Text of the button.
        make: Returns the content of the file. It is called when the button is pressed.
        file_name: Name of the file.
        mime: Its MIME type.
        key: Key of the button.
        options: Further arguments of `st.button`.
    """
    st.button(label, key=key, on_click=_request, args=(_Request(make, file_name, mime),), **options)


def add_download_fragment() -> None:
    """Add the fragment that makes requested files and sends them to the browser. Call this once per rerun of a page.

    Apart from messages, the fragment is invisible.
    """
    with st.container(key="files"):
        st.fragment(_make_and_send, key=FRAGMENT)()


def _request(request: _Request) -> None:
    st.session_state.setdefault(_REQUESTS, []).append(request)
    st.rerun(FRAGMENT)  # executes only the fragment, not the page


def _make_and_send() -> None:
    requests: list[_Request] = st.session_state.get(_REQUESTS, [])
    files: dict[int, bytes] = st.session_state.setdefault(_FILES, {})
    while requests:
        # Streamlit may end this execution at the message, if another page is opened. The request is removed after it.
        st.toast(f"Making {requests[0].name} …", icon=":material/download:")
        request = requests.pop(0)
        try:
            content = request.make()
        except Exception as exc:  # top-level exception handler of a file
            messages.error(exc, as_toast=True)
            continue
        number = next(_numbers)
        header = json.dumps({"number": number, "name": request.name, "type": request.type})
        content_bytes = content.encode() if isinstance(content, str) else content
        files[number] = header.encode() + b"\n" + content_bytes
    for number, data in files.items():
        _save(data=data, key=f"file-{number}", on_saved_change=partial(_on_saved, number))


def _on_saved(number: int) -> None:
    st.session_state[_FILES].pop(number, None)
