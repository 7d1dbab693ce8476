"""The access token of the app: a secret of this user, and the address that contains it.

The token is stored in a private file, so that an address from an earlier start of the app still works. EMTC_TOKEN sets
another token; EMTC_TOKEN=off opens the app without a token.
"""

import os
import secrets
import socket
from pathlib import Path
from typing import Final

from platformdirs import user_state_path

from emtc_core.atomic_file import replace_atomically
from emtc_core.errors import ConfigError
from storage.private_files import FILE_MODE, make_private_folder

TOKEN_VARIABLE: Final = "EMTC_TOKEN"
TOKEN_PARAMETER: Final = "token"
DEFAULT_PORT: Final = 8501
_MIN_LENGTH: Final = 16
_CONNECT_TIMEOUT_S: Final = 5.0


def get_token() -> str | None:
    """Return the token that opens the app, or None if EMTC_TOKEN=off. A missing file is created.

    Raises:
        ConfigError: If EMTC_TOKEN is too short, or the file cannot be read or written.
    """
    setting = os.environ.get(TOKEN_VARIABLE, "").strip()
    if setting.lower() == "off":
        return None
    if setting and len(setting) < _MIN_LENGTH:
        raise ConfigError(f"{TOKEN_VARIABLE} must be off, or a secret of at least {_MIN_LENGTH} characters")
    path = user_state_path("emtc-lab", appauthor=False) / "app-token"
    try:
        if setting:
            return setting
        return _read_token(path) or _create_token(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used: {error.strerror}", hint=f"Set {TOKEN_VARIABLE} to a secret."
        ) from error


def find_address(port: int) -> str:
    """Return the address of the app on a port of this computer, with the token if one is needed.

    Raises:
        ConfigError: If no program listens on the port.
    """
    try:
        socket.create_connection(("localhost", port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        hint = "Start the app with emtc app, or name its port with --port."
        raise ConfigError(f"No program listens on port {port}", hint=hint) from error
    return add_token(f"http://localhost:{port}")


def add_token(address: str) -> str:
    """Append the token to the address of the start page, if a token is needed."""
    token = get_token()
    return f"{address}/?{TOKEN_PARAMETER}={token}" if token else address


def _read_token(path: Path) -> str | None:
    """Read a token; None if there is no file, or if other users can access it."""
    try:
        other_permissions = path.stat().st_mode & 0o777 & ~FILE_MODE
        token = path.read_text().strip()
    except FileNotFoundError:
        return None
    is_private = os.name != "posix" or not other_permissions
    return token if is_private and len(token) >= _MIN_LENGTH else None


def _create_token(path: Path) -> str:
    make_private_folder(path.parent)
    token = secrets.token_urlsafe(32)
    with replace_atomically(path, private=True) as file:
        file.write(token.encode())
    return _read_token(path) or token  # another process may have written its token at the same time
