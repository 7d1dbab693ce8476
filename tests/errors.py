"""Match an error of the settings by the data of its faults, so that a test holds whatever the message is."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from emtc_core.config.base import convert_errors
from emtc_core.errors import ConfigError, Fault


@contextmanager
def raises(kind: type[BaseException], *, key=..., value=..., related=...) -> Generator[pytest.ExceptionInfo]:
    """Expect an error with these faults. Data that is left out may be anything.

    Args:
        kind: Type of the error.
        key: Key of its only fault, or a list with the key of each.
        value: Value of its only fault.
        related: Settings that its only fault compares with.
    """
    with pytest.raises(kind) as caught:
        yield caught
    faults = faults_of(caught.value)
    if isinstance(key, list):
        assert [fault.key for fault in faults] == key
        return
    (fault,) = faults
    for name, wanted in (("key", key), ("value", value), ("related", related)):
        assert wanted is ... or getattr(fault, name) == wanted, f"{name}: {fault}"


def faults_of(error: BaseException) -> list[Fault]:
    """The faults of a configuration that was refused, by pydantic or by this project."""
    if isinstance(error, ValidationError):
        return convert_errors(error)
    assert isinstance(error, ConfigError), repr(error)
    return error.faults
