"""Access to the app by a token. The address that the server prints contains it, and the browser stores it in a cookie.

Streamlit itself checks host and origin (`server.allowedHosts`, `server.corsAllowedOrigins`). If a login is configured
(`[auth]` in the secrets, see `app.ui.login`), no token is needed.
"""

import hashlib
import hmac
import sys
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Final
from urllib.parse import quote, urlencode

import streamlit as st
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.jobs.access_token import TOKEN_PARAMETER, add_token, get_token
from app.ui import login
from emtc_core.errors import ConfigError

_COOKIE_AGE_S: Final = 30 * 24 * 3600
_HEALTH_PATH: Final = "/_stcore/health"
_REFUSED_PAGE: Final = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>EMTC Lab</title><body style="font: 1rem/1.5 sans-serif; margin: 4rem auto; max-width: 40rem">
EMTC Lab opens with the address that its terminal printed at the start;
<code>emtc app --address --port {port}</code> prints it again for the user who started it."""


class AccessControl:
    """ASGI middleware that passes requests with the token to the app, or all requests if a login is configured.

    Args:
        app: The application that handles the requests.
        token: The token. None: no token is needed, and every request is passed on.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token
        # The browser sends a cookie to all ports of a host. The name of the cookie depends on the token, so that
        # several apps on one host do not overwrite the tokens of each other.
        self._cookie = f"emtc_{hashlib.sha256((token or '').encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse it."""
        if scope["type"] not in ("http", "websocket") or self._token is None or _has_login():
            await self._app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        if scope["type"] == "http" and self._is_token(request.query_params.get(TOKEN_PARAMETER)):
            await self._store_token(request)(scope, receive, send)
        elif self._is_token(request.cookies.get(self._cookie)) or _is_health_check(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            page = _REFUSED_PAGE.format(port=st.get_option("server.port"))
            await HTMLResponse(page, 403, {"Cache-Control": "no-store"})(scope, receive, send)
        else:
            await WebSocket(scope, receive, send).close(code=1008)  # policy violation

    def _is_token(self, value: str | None) -> bool:
        return hmac.compare_digest((value or "").encode(), (self._token or "").encode())

    def _store_token(self, request: HTTPConnection) -> Response:
        """Set the cookie, and redirect to the same address without the token."""
        other_parameters = [item for item in request.query_params.multi_items() if item[0] != TOKEN_PARAMETER]
        # Exactly one slash at the start: a browser reads a path that starts with // as the address of another host.
        path = quote(f"/{request.scope['path'].lstrip('/')}")
        target = f"{path}?{urlencode(other_parameters)}" if other_parameters else path
        response = RedirectResponse(target, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"})
        is_secure = request.scope["scheme"] == "https"
        response.set_cookie(
            self._cookie, self._token or "", _COOKIE_AGE_S, httponly=True, samesite="lax", secure=is_secure
        )
        return response


def make_middleware() -> Middleware:
    """Return the access control with this user's token. If the token cannot be read, exit with the error's message."""
    try:
        return Middleware(AccessControl, token=get_token())
    except ConfigError as error:
        raise SystemExit(str(error)) from error


@asynccontextmanager
async def print_address_at_start(_: object) -> AsyncGenerator[None]:
    """Print the address of the started server, and open it in a browser unless `server.headless` is set."""
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    base = st.get_option("server.baseUrlPath").strip("/")
    host, port = st.get_option("browser.serverAddress"), st.get_option("browser.serverPort")
    address = f"{scheme}://{host}:{port}{f'/{base}' if base else ''}"
    if not _has_login():
        address = add_token(address)
    sys.stdout.write(f"\n  EMTC Lab: {address}\n\n")
    sys.stdout.flush()
    if not st.get_option("server.headless"):
        webbrowser.open(address)
    yield


@cache
def _has_login() -> bool:
    """Return whether an identity provider is configured. If the secrets cannot be read, the token is required."""
    try:
        return bool(login.list_providers())
    except ConfigError:
        return False


def _is_health_check(scope: Scope) -> bool:
    base = st.get_option("server.baseUrlPath").strip("/")
    return scope["path"] == (f"/{base}{_HEALTH_PATH}" if base else _HEALTH_PATH)
