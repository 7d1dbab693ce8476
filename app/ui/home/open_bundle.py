"""The box *Bundles*: lists the opened bundles (files of exported runs), and opens one from an upload or a path."""

import shutil
from pathlib import Path
from typing import Final

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from app.ui import data, messages
from app.ui.home import bundle_list, import_bundle
from app.ui.widgets import box
from emtc_core.errors import EmtcError, StorageError
from storage.bundles.bundle_cache import cache_bundle, clean_name
from storage.bundles.read import find_cache, make_temporary_folder
from storage.engine import is_read_only

SUFFIX: Final = ".emtc"
_N_OPENED: Final = "bundles_opened"
"""Key of the session state: number of bundles that were opened."""
_REFUSED: Final = "bundle_refused"
"""Key of the session state: id of the last refused upload, and its error."""
_HELP: Final = "A bundle contains data only; no code in it is run. It is unpacked into your cache folder, read-only."


def show() -> None:
    """Draw the button that opens the box; a read-only server does not open bundles."""
    if is_read_only():
        return
    bundles = box.show("Bundles", icon=":material/folder_zip:", key="bundles", help=_HELP)
    if not bundles.is_opened:
        return
    with bundles.container:
        import_bundle.show_outcome()
        bundle_list.show()
        _show_form()


def _show_form() -> None:
    """Draw the fields that open a file. A new key after each opened file clears the field of the upload."""
    number = st.session_state.get(_N_OPENED, 0)
    upload = st.file_uploader(
        f"Open a file written by `emtc bundle`, up to {st.get_option('server.maxUploadSize')} MB",
        type=SUFFIX.removeprefix("."),
        key=f"bundle_file-{number}",
    )
    with st.form("bundle_by_path", border=False):
        path = st.text_input(
            "For a larger file: its path on this machine", key="bundle_path", placeholder="~/Downloads/study.emtc"
        )
        is_submitted = st.form_submit_button("Check and open", icon=":material/folder_open:")
    try:
        if upload is not None:
            _check_and_open_upload(upload)
        elif is_submitted and path:
            _check_and_open(_parse_path(path))
        else:
            return
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_N_OPENED] = number + 1
    st.rerun()


def _check_and_open_upload(upload: UploadedFile) -> None:
    """Write an upload into a temporary file that has the name of the upload, and open the file.

    The file is read in parts, so that not all of it is in memory at once. The upload stays in its field after an error.
    It is not checked again each time Streamlit executes the page.

    Raises:
        EmtcError: If the file is not a valid bundle, or the cache folder cannot be written.
    """
    refused_id, refusal = st.session_state.get(_REFUSED, ("", None))
    if refusal is not None and refused_id == upload.file_id:
        raise refusal
    try:
        with make_temporary_folder(find_cache()) as folder:
            path = Path(folder) / clean_name(upload.name)
            try:
                with path.open("xb") as file:
                    shutil.copyfileobj(upload, file)
            except OSError as error:
                raise StorageError(f"Cannot write {path}: {error.strerror}.") from error
            _check_and_open(path)
    except EmtcError as exc:
        st.session_state[_REFUSED] = (upload.file_id, exc)
        raise


def _parse_path(text: str) -> Path:
    """Parse a typed path. A file whose name does not end in .emtc is not opened.

    Raises:
        StorageError: If the text is not a path of a bundle.
    """
    try:
        path = Path(text.strip()).expanduser().absolute()
    except (RuntimeError, ValueError) as error:
        raise StorageError("This is not a valid path on this machine.") from error
    if path.suffix != SUFFIX or not text.isprintable():
        raise StorageError(f"The name of a bundle ends in {SUFFIX}, got {clean_name(text)}.")
    return path


def _check_and_open(path: Path) -> None:
    with st.spinner("Unpacking and checking the bundle …"):
        bundle = cache_bundle(path)
    data.open_url.clear(bundle.url)  # close a connection to the file that the new one replaced
