"""Access to the app: each request is checked before Streamlit handles it.

The app belongs to the user who started it. On Linux the kernel lists the user of each connection inside the computer,
so a browser of the same user needs no secret. All other browsers need the token: once in the address, then in a cookie.
A login (`[auth]`) replaces the token.

A page of another site cannot use the app through the user's browser: `Origin` must be this app's own origin, and no
other site can show the app in a frame.
"""

import hashlib
import hmac
import html
import os
import sys
import webbrowser
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Final
from urllib.parse import quote, urlencode

import streamlit as st
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from app.jobs.access_token import LOCAL_HOST, TOKEN_PARAMETER, add_token, get_token
from app.jobs.socket_users import can_identify_users, find_client_user
from app.ui import login
from emtc_core.errors import ConfigError

_COOKIE_AGE_S: Final = 30 * 24 * 3600
_HEALTH_PATH: Final = "/_stcore/health"
_STATIC_PATH: Final = "/static/"
"""Streamlit's own scripts and styles."""
_PROXY_HEADERS: Final = ("x-forwarded-for", "forwarded", "x-real-ip", "via")
_FRAME_HEADERS: Final = {"Content-Security-Policy": "frame-ancestors 'self'", "X-Frame-Options": "SAMEORIGIN"}
_PAGE: Final = """<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">{head}
<title>EMTC Lab</title><body style="font: 1rem/1.5 sans-serif; margin: 4rem auto; max-width: 40rem">{body}"""


class AccessControl:
    """ASGI middleware that admits this user, browsers with the token, and, if a login is configured, all browsers.

    Args:
        app: The application that handles admitted requests.
        token: The token, or None if no token is needed.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token
        self._cookie = f"emtc_{hashlib.sha256((token or '').encode()).hexdigest()[:12]}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        answer = self._check(HTTPConnection(scope))
        if scope["type"] == "websocket":
            if answer is None:
                await self._app(scope, receive, send)
            else:
                await WebSocket(scope, receive, send).close(code=1008)
            return
        await (answer or self._app)(scope, receive, _forbid_foreign_frames(send))

    def _check(self, request: HTTPConnection) -> Response | None:
        """Return None if Streamlit may handle the request, or else the response."""
        if not has_own_origin(request):
            return Response(status_code=403)
        base = st.get_option("server.baseUrlPath").strip("/")
        # The path of the scope: request.url is made from the header Host.
        path = request.scope["path"].removeprefix(f"/{base}" if base else "")
        if self._token is None or path == _HEALTH_PATH or path.startswith(_STATIC_PATH) or _has_login():
            return None
        given = request.query_params.get(TOKEN_PARAMETER) if request.scope["type"] == "http" else None
        is_cookie_valid = self._is_token(request.cookies.get(self._cookie))
        is_admitted = is_cookie_valid or is_own_user(request)
        if given is not None and (is_admitted or self._is_token(given)):
            response = _reload_without_token(request)
            if not is_admitted:
                is_secure = request.scope["scheme"] == "https"
                response.set_cookie(
                    self._cookie, given, _COOKIE_AGE_S, httponly=True, samesite="strict", secure=is_secure
                )
            return response
        if is_admitted:
            return None
        if (
            request.headers.get("sec-fetch-site") == "cross-site"
            and request.headers.get("sec-fetch-mode") == "navigate"
        ):
            return _reload_without_token(request)  # a link on another site: the browser sends the cookie at the reload
        return _make_closed_page()

    def _is_token(self, value: str | None) -> bool:
        return hmac.compare_digest((value or "").encode(), (self._token or "").encode())


def make_middleware() -> Middleware:
    """Return the access control with this user's token. The process ends with a sentence if there is no token."""
    try:
        return Middleware(AccessControl, token=get_token())
    except ConfigError as error:
        raise SystemExit(str(error)) from error


def has_own_origin(request: HTTPConnection) -> bool:
    """Return whether the page that sent the request is this app's, or only reads. Scheme, host and port must be equal.

    Programs other than browsers send no origin. A proxy with TLS passes requests of https pages on as http.
    """
    origin, method = request.headers.get("origin"), request.scope.get("method", "GET")
    if origin is None or (request.scope["type"] == "http" and method in ("GET", "HEAD")):
        return True
    scheme = "https" if request.scope["scheme"] in ("https", "wss") else "http"
    host = request.headers.get("host", "")
    allowed = {f"{scheme}://{host}", f"https://{host}", *st.get_option("server.corsAllowedOrigins")}
    return origin.lower() in {name.lower() for name in allowed}


def is_own_user(request: HTTPConnection) -> bool:
    """Return whether the request was sent by a process of the user who started the app.

    A request that passed a proxy is the proxy's: its headers name the client, and any client can write them.
    """
    client, server = request.scope.get("client"), request.scope.get("server")
    if client is None or server is None or any(name in request.headers for name in _PROXY_HEADERS):
        return False
    return can_identify_users() and find_client_user(client, server) == os.geteuid()


@asynccontextmanager
async def announce(_: object) -> AsyncGenerator[None]:
    """Print the address of the started server, and open it in a browser unless `server.headless` is set."""
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    base = st.get_option("server.baseUrlPath").strip("/")
    host, port = st.get_option("browser.serverAddress"), st.get_option("browser.serverPort")
    if host == "localhost" and not _has_login():
        host = LOCAL_HOST
    address = f"{scheme}://{host}:{port}{f'/{base}' if base else ''}"
    sys.stdout.write(f"\n  EMTC Lab: {address if _has_login() else add_token(address)}\n\n")
    sys.stdout.flush()
    if not st.get_option("server.headless"):
        webbrowser.open(address if can_identify_users() or _has_login() else add_token(address))
    yield


@cache
def _has_login() -> bool:
    """Return whether an identity provider is configured. Unreadable secrets contain none."""
    try:
        return bool(login.list_providers())
    except ConfigError:
        return False


def _reload_without_token(request: HTTPConnection) -> Response:
    """Make a page that loads the same address without the token. After a redirect no cookie would be sent."""
    path = request.scope["path"]
    rest = [(name, value) for name, value in request.query_params.multi_items() if name != TOKEN_PARAMETER]
    target = f"/{quote(path.lstrip('/'))}{f'?{urlencode(rest)}' if rest else ''}"
    head = f'<meta http-equiv="refresh" content="0; url={html.escape(target)}">'
    return _make_page(head=head, body="")


def _make_closed_page() -> Response:
    port = st.get_option("server.port")
    body = (
        "EMTC Lab opens with the address that its terminal printed at the start; "
        f"<code>emtc app --address --port {port}</code> prints it again for the user who started it."
    )
    return _make_page(body=body, status=403)


def _make_page(*, body: str, head: str = "", status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
    return HTMLResponse(_PAGE.format(head=head, body=body), status, headers)


def _forbid_foreign_frames(send: Send) -> Send:
    """Add the headers that allow only pages of this app to show it in a frame."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_FRAME_HEADERS)
        await send(message)

    return send_with_headers
