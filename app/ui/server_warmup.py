"""Compilation and imports that a server starts in the background, once, when it draws its first page."""

from importlib import import_module
from threading import Timer

import streamlit as st

from app.jobs.launch import start_warmup
from app.ui import data

_IMPORT_DELAY_S = 1.0
"""Delay before the import, so that it does not slow down the first page [s]."""


@st.cache_resource(show_spinner=False)
def start_once(url: str) -> bool:
    """Start a compilation and an import in the background, so that later actions do not wait for them.

    The compilation is that of the kernels (Numba functions), which the first run of a new installation would otherwise
    compile. The import is that of the figures and SciPy, which the next page needs. The cache of Streamlit makes this
    happen once per server.

    Args:
        url: URL of the app's database. For a SQLite file NAME.db, the compilation writes its log to the file
            NAME.files/warm-up.txt in the same folder. For another database, nothing is compiled.

    Returns:
        Whether the compilation was started.
    """
    timer = Timer(_IMPORT_DELAY_S, import_module, ["app.figures.registry"])
    timer.daemon = True
    timer.start()
    path = data.open_url(url).path
    if path is None:
        return False
    return start_warmup(path.with_name(f"{path.stem}.files") / "warm-up.txt")
