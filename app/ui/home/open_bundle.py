"""A file from a colleague: dropped here, or named by its path; checked row by row before anything is shown of it."""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import streamlit as st

from app.analysis.format import escape_markdown, size
from app.ui import data, messages
from app.ui.home import bundle_list
from emtc_core.errors import EmtcError, StorageError
from storage.bundles.bundle_cache import cache_bundle, clean_name
from storage.bundles.read import find_cache, peek
from storage.engine import is_read_only
from storage.private_files import make_private_folder

SUFFIX = ".emtc"
_DROPPED, _TYPED, _TIMES = "bundle_file", "bundle_path", "bundles_opened"
_HELP = "A bundle is data: nothing in it is run. It is unpacked into this user's cache folder and stays read-only."


def show() -> None:
    """Offer to open a bundle; a server that only shows offers nothing."""
    if is_read_only():
        return
    times = st.session_state.get(_TIMES, 0)  # another time is another popover: closed, and its field holds no upload
    with st.popover("Open a bundle", icon=":material/folder_zip:", key=f"open_bundle-{times}", help=_HELP):
        dropped = st.file_uploader(
            f"A file that `emtc bundle` wrote, up to {st.get_option('server.maxUploadSize')} MB",
            type=SUFFIX.removeprefix("."),
            key=f"{_DROPPED}-{times}",
        )
        with st.form("bundle_by_path", border=False):
            path = st.text_input(
                "A larger one: its path on this machine", key=_TYPED, placeholder="~/Downloads/study.emtc"
            )
            typed = st.form_submit_button("Check and open", icon=":material/folder_open:")
        try:
            if dropped is not None:
                with _kept(dropped, dropped.name) as place:
                    _open(place)
            elif typed and path:
                _open(_find(path))
            else:
                return
        except EmtcError as exc:
            messages.error(exc)
            return
    st.session_state[_TIMES] = times + 1
    st.rerun()


def _open(place: Path) -> None:
    """Say at once what a file says of itself, then look at every row of it."""
    manifest = peek(place)
    runs = [run for run in manifest.runs if isinstance(run, dict)]
    says = f"It says that it holds {bundle_list.describe_runs(runs)}, {size(manifest.size)} unpacked"
    with st.spinner(f"{escape_markdown(says)}. Checking every row …"):
        bundle = cache_bundle(place)
    data.close_url(bundle.url)
    st.session_state[bundle_list.NEW] = bundle.key


def _find(path: str) -> Path:
    """Read a path that somebody typed; what is no bundle by its name is not even looked at.

    Raises:
        StorageError: If no bundle can be there.
    """
    try:
        place = Path(path.strip()).expanduser().absolute()
    except (RuntimeError, ValueError) as error:
        raise StorageError("This is no path of a file on this machine.") from error
    if place.suffix != SUFFIX or not path.isprintable():
        raise StorageError(f"A bundle's name ends in {SUFFIX}, got {clean_name(path)}.")
    return place


@contextmanager
def _kept(dropped: BinaryIO, name: str) -> Generator[Path]:
    """Write an upload where it can be read in parts, under its own name, for as long as it is checked."""
    folder = find_cache()
    try:
        make_private_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".dropped-", dir=folder) as holder:
            place = Path(holder) / clean_name(name)
            with place.open("xb") as file:
                shutil.copyfileobj(dropped, file)
            yield place
    except OSError as error:
        raise StorageError(f"{folder} cannot be written: {error.strerror}. A bundle is unpacked there.") from error
