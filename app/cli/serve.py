"""`emtc app`: this process becomes the Streamlit server, from a checkout and from a wheel."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from app.cli.output import DEFAULT_DATABASE, DatabaseUrl
from emtc_core.plugins import FOLDER_VARIABLE, get_user_folder
from storage.address import make_absolute

ROOT = Path(__file__).resolve().parent.parent.parent


def serve_app(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port; Streamlit's own choice, 8501, if missing")
    ] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Start the app, until it is interrupted; what it shows is the database of this folder, or --db."""
    become_app(db, [] if port is None else ["--server.port", str(port)])


def become_app(url: str, options: list[str] | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Turn this process into the app, so that whoever ends the one has ended the other.

    The working directory is on no import path (-P): a file `app.py` of the user's is not taken for the package. A
    checkout's settings are read from its folder; a wheel carries them beside `Home.py`, where Streamlit looks too.
    """
    environment_changes = {
        "EMTC_DB": make_absolute(url),
        FOLDER_VARIABLE: str(get_user_folder()),
        **(environment or {}),
    }
    if (ROOT / ".streamlit").is_dir():
        os.chdir(ROOT)
    home = [sys.executable, "-P", "-m", "streamlit", "run", str(ROOT / "app" / "Home.py"), *(options or [])]
    os.execve(sys.executable, home, os.environ | environment_changes)
