"""Match an error by its type and its data, so that a test holds whatever the message is."""

from collections.abc import Generator
from contextlib import contextmanager

import pytest
from pydantic import ValidationError

from emtc_core.config.base import convert_errors
from emtc_core.errors import ConfigError, EmtcError, Fault


@contextmanager
def raises(
    kind: type[BaseException], *, key=..., value=..., related=..., reason=..., subject=...
) -> Generator[pytest.ExceptionInfo]:
    """Expect an error with this data. Data that is left out may be anything.

    Args:
        kind: Type of the error.
        key: Key of its only fault, or a list with the key of each.
        value: Value of its only fault.
        related: Settings that its only fault compares with.
        reason: Its `reason`.
        subject: Its `subject`, compared as text.
    """
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    if isinstance(key, list):
        assert [fault.key for fault in faults_of(error)] == key
    elif (key, value, related) != (..., ..., ...):
        (fault,) = faults_of(error)
        for name, wanted in (("key", key), ("value", value), ("related", related)):
            assert wanted is ... or getattr(fault, name) == wanted, f"{name}: {fault}"
    if reason is not ...:
        assert isinstance(error, EmtcError)
        assert error.reason == reason, error
    if subject is not ...:
        assert isinstance(error, EmtcError)
        assert str(error.subject) == str(subject), error


def faults_of(error: BaseException) -> list[Fault]:
    """The faults of a configuration that was refused, by pydantic or by this project."""
    if isinstance(error, ValidationError):
        return convert_errors(error)
    assert isinstance(error, ConfigError), repr(error)
    return error.faults
