"""Decide what a missing component means: a skip with its reason for a user, a failure in CI."""

import os

import pytest


def require(component: str, available: bool, reason: str) -> None:
    """Skip unless `component` is available; fail instead when EMTC_REQUIRE names it."""
    if available:
        return
    if component in os.environ.get("EMTC_REQUIRE", "").split(","):
        pytest.fail(f"{component} is required here but missing: {reason}")
    pytest.skip(f"{component}: {reason}")
