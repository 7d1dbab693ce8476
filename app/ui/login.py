"""Who may see the app: whoever reaches it, or, where its secrets name an identity provider, who logs in with that.

The login is Streamlit's own (OpenID Connect, `[auth]` in `.streamlit/secrets.toml`). A provider for everybody, as
those of large companies are, says who somebody is and not that they may come in: EMTC_USERS lists who may. With such a
list and no provider nobody comes in. An address counts where the provider says that it has verified it.

Nobody uploads anything before the login. Streamlit takes files from every open page, and a page is open before its
login: so the place where files are kept in memory asks who sends them, from the first page that anybody opens on.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import streamlit as st
from streamlit.errors import StreamlitAPIException, StreamlitSecretNotFoundError
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.analysis.format import escape_markdown
from app.ui import messages
from emtc_core.errors import ConfigError

USERS_VARIABLE = "EMTC_USERS"
DEFAULT = "default"


def require() -> None:
    """Show nothing but the login to whoever must log in first."""
    try:
        providers = list_providers()
    except ConfigError as exc:  # what cannot be read may have asked for a login
        messages.error(exc)
        st.stop()
    if not providers:
        _require_nobody()
        return
    if not st.user.get("is_logged_in"):
        forbid()
        _offer(providers)
        st.stop()
    address = str(st.user.get("email") or "")
    if not is_welcome(address, verified=is_verified(st.user.get("email_verified"))):
        forbid()
        st.error(f"{escape_markdown(address) or 'Who has no e-mail address'} may not see this server.")
        st.button("Log out", on_click=st.logout)
        st.stop()
    allow()


def show_account() -> None:
    """Show in the sidebar who has logged in, with the way out."""
    if st.user.get("is_logged_in"):
        st.sidebar.caption(escape_markdown(str(st.user.get("email") or "")))
        st.sidebar.button("Log out", on_click=st.logout, key="log_out")


def list_providers() -> list[str]:
    """List the identity providers that the secrets name; none means that nobody needs to log in.

    Raises:
        ConfigError: If there are secrets that cannot be read.
    """
    try:
        auth = st.secrets.get("auth")
    except StreamlitSecretNotFoundError as exc:
        if any(Path(file).exists() for file in st.get_option("secrets.files")):
            raise ConfigError(
                "The secrets of this server cannot be read, so no login works", hint="Correct them."
            ) from exc
        return []
    if auth is None:
        return []
    return [name for name, value in auth.items() if isinstance(value, Mapping)] or [DEFAULT]


def is_welcome(address: str, *, verified: bool = True) -> bool:
    """Whether an address is in EMTC_USERS, as itself or by its domain (`@lab.org`); without a list it is."""
    users = os.environ.get(USERS_VARIABLE, "").replace(",", " ").lower().split()
    name, _, domain = address.lower().rpartition("@")
    return not users or (verified and bool(name) and (address.lower() in users or f"@{domain}" in users))


def is_verified(claim: object) -> bool:
    """Whether a provider vouches for an address: only if it says so, as a truth value or as that word."""
    return claim is True or (isinstance(claim, str) and claim.lower() == "true")


def _require_nobody() -> None:
    """Show nothing where a list says who may come in and no provider can say who somebody is."""
    if os.environ.get(USERS_VARIABLE, "").strip():
        forbid()
        messages.error(
            ConfigError(
                f"{USERS_VARIABLE} says who may come in, and no provider says who somebody is. "
                "Name one under [auth] in .streamlit/secrets.toml."
            )
        )
        st.stop()


def _offer(providers: list[str]) -> None:
    st.title("EMTC Lab")
    st.markdown("Log in to see the runs of this server.")
    for name in providers:
        label = "Log in" if name == DEFAULT else f"Log in with {escape_markdown(name)}"
        if st.button(label, key=f"login_{name}", type="primary"):
            _log_in(name)


def _log_in(provider: str) -> None:
    try:
        st.login(None if provider == DEFAULT else provider)
    except StreamlitAPIException as exc:  # a library or a setting that is missing
        messages.error(ConfigError(f"Nobody can log in yet: {' '.join(str(exc).split())}"))


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
