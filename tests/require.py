"""Decide what a missing component means: a skip with its reason for a user, a failure in CI."""

import os
import shutil
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest

from emtc_core.envs.registry import get_adapter


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


def require_env(name: str) -> None:
    """Require what an environment runs with."""
    reason = get_adapter(name).find_unavailable_reason()
    require(name, not reason, reason)


def require_latex() -> None:
    """Require the programs that compile a document and read its text."""
    for program in ("pdflatex", "pdftotext"):
        require("latex", shutil.which(program) is not None, f"{program} is not installed (see .ci/packages)")
