"""Decide what a missing component means: a skip with its reason for a user, a failure in CI."""

import os
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest


def require(component: str, available: bool, reason: str) -> None:
    """Skip unless `component` is available; fail instead when EMTC_REQUIRE names it."""
    if available:
        return
    if component in os.environ.get("EMTC_REQUIRE", "").split(","):
        pytest.fail(f"{component} is required here but missing: {reason}")
    pytest.skip(f"{component}: {reason}")


def require_package(name: str) -> ModuleType:
    """Import a package that the extra `test-all` has, or skip or fail as `require` does."""
    require(name, find_spec(name) is not None, "the extra `test-all` is not installed")
    return import_module(name)
