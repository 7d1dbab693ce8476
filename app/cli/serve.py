"""`emtc app`: start the Streamlit server, from a checkout or an installed wheel."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from app.cli.arguments import DEFAULT_DATABASE, DatabaseUrl
from app.jobs.access_token import DEFAULT_PORT, find_address
from emtc_core.plugins import list_plugins
from emtc_core.user_modules import FOLDER_VARIABLE, get_user_folder
from storage.address import make_absolute

ROOT = Path(__file__).resolve().parent.parent.parent
"""Folder of the checkout, or folder of the installed packages."""


def serve_app(
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port; default: Streamlit's, 8501")] = None,
    address: Annotated[bool, typer.Option("--address", help="Only print the address of the started app")] = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Start the app. It shows the database in this folder, or that of --db. Stop it with Ctrl+C."""
    if address:
        sys.stdout.write(f"{find_address(port or DEFAULT_PORT)}\n")
        return
    list_plugins()  # raises if a plug-in cannot be imported, before the server starts
    become_app(db, [] if port is None else ["--server.port", str(port)])


def become_app(url: str, options: list[str] | None = None, environment: Mapping[str, str] | None = None) -> None:
    """Replace this process by the Streamlit server, so that a signal to this process ends the server.

    With -P the working directory is not an import path, so a user's file `app.py` does not hide the package `app`.
    Streamlit reads its settings from the folder `.streamlit` of a checkout, or next to `Home.py` in a wheel.

    Args:
        url: URL of the database that the app shows.
        options: Options of `streamlit run`.
        environment: Additional environment variables.
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
