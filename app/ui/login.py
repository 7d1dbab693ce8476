"""Login with an identity provider (for example Google), and the list of allowed users.

The login is Streamlit's own (OpenID Connect, `[auth]` in `.streamlit/secrets.toml`). If no provider is configured, the
user needs the address with the access token that the server prints at its start; see `app.ui.access`.

A public provider confirms e-mail addresses, but every person can log in. The environment variable EMTC_USERS therefore
lists the allowed addresses. An address is allowed only if the provider has verified it. If EMTC_USERS is set but no
provider is configured, access is denied to all users.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import streamlit as st
from streamlit.errors import StreamlitAPIException, StreamlitSecretNotFoundError

from app.analysis.format import escape_markdown
from app.ui import messages
from app.ui.upload_guard import allow_uploads, forbid_uploads
from emtc_core.errors import ConfigError

USERS_VARIABLE: Final = "EMTC_USERS"
DEFAULT_PROVIDER: Final = "default"
"""Name of the provider if `[auth]` has one provider without a name."""


def require_login() -> None:
    """If the user must log in first or is not allowed, draw only the login or an error, and stop the page."""
    try:
        providers = list_providers()
    except ConfigError as exc:  # unreadable secrets may contain a provider, so no page is shown
        forbid_uploads()
        messages.error(exc)
        st.stop()
    has_user_list = bool(os.environ.get(USERS_VARIABLE, "").strip())
    if not providers and not has_user_list:
        return
    is_logged_in = bool(providers and st.user.get("is_logged_in"))
    address = str(st.user.get("email") or "") if is_logged_in else ""
    if is_logged_in and is_allowed(address, verified=is_verified(st.user.get("email_verified"))):
        allow_uploads()
        return
    forbid_uploads()
    if not providers:
        messages.error(
            ConfigError(
                f"{USERS_VARIABLE} lists the allowed users, but no identity provider is configured. "
                "Add one under [auth] in .streamlit/secrets.toml."
            )
        )
    elif not is_logged_in:
        _show_login(providers)
    else:
        st.error(f"{escape_markdown(address) or 'An account without an e-mail address'} may not use this server.")
        st.button("Log out", on_click=st.logout)
    st.stop()


def show_account() -> None:
    """Draw the user's address and the logout button in the sidebar."""
    if st.user.get("is_logged_in"):
        st.sidebar.caption(escape_markdown(str(st.user.get("email") or "")))
        st.sidebar.button("Log out", on_click=st.logout, key="log_out")


def list_providers() -> list[str]:
    """List the names of the identity providers in the secrets; empty if none is configured.

    Raises:
        ConfigError: If a secrets file exists and cannot be read.
    """
    try:
        auth = st.secrets.get("auth")
    except StreamlitSecretNotFoundError as exc:
        if any(Path(file).exists() for file in st.get_option("secrets.files")):
            raise ConfigError("The secrets file of this server cannot be read", hint="Correct the file.") from exc
        return []
    if auth is None:
        return []
    return [name for name, value in auth.items() if isinstance(value, Mapping)] or [DEFAULT_PROVIDER]


def is_allowed(address: str, *, verified: bool = True) -> bool:
    """Return whether EMTC_USERS is empty, or contains the verified address or its domain (`@lab.org`)."""
    users = os.environ.get(USERS_VARIABLE, "").replace(",", " ").lower().split()
    if not users:
        return True
    name, _, domain = address.lower().rpartition("@")
    if not verified or not name:
        return False
    return address.lower() in users or f"@{domain}" in users


def is_verified(claim: object) -> bool:
    """Return whether a provider's claim `email_verified` is true. Some providers send it as a text."""
    return claim is True or (isinstance(claim, str) and claim.lower() == "true")


def _show_login(providers: list[str]) -> None:
    st.title("EMTC Lab")
    st.markdown("Log in to see the runs of this server.")
    for name in providers:
        label = "Log in" if name == DEFAULT_PROVIDER else f"Log in with {escape_markdown(name)}"
        if st.button(label, key=f"login_{name}", type="primary"):
            try:
                st.login(None if name == DEFAULT_PROVIDER else name)
            except StreamlitAPIException as exc:  # a missing library or setting
                messages.error(ConfigError(f"The login is not set up: {' '.join(str(exc).split())}"))
