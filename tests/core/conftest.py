"""Fixtures of the core's tests."""

from pathlib import Path

import pytest

from tests.core.smac_machine import Machine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.fixture
def ready(machine: Machine) -> Machine:
    machine.install_all("3m", "2s3z", "32x32_flat")
    return machine
