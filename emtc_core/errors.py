"""Every error that EMTC Lab raises on purpose.

    EmtcError
    ├── ConfigError             a setting is unknown, out of bounds or contradicts another
    │   └── PluginError         a plug-in is missing, cannot be loaded or breaks its contract
    ├── ShapeError              an array does not have the required dimensions
    ├── EnvUnavailableError     an environment or map is unknown, or something that it needs is not installed
    ├── CheckpointError         a checkpoint is missing, truncated or of another configuration
    ├── NonFiniteLossError      training produced NaN or infinity
    ├── ClusterError            a cluster cannot be reached or lacks something, or a worker on it failed
    ├── RunInterruptedError     a run was killed before its first checkpoint
    └── StorageError            the database cannot be opened, read or written
        ├── FileMissingError    the SQLite file was moved or deleted while it was in use
        ├── RunNotFoundError    no run, or more than one run, has this id
        ├── RunStateError       the state of the run does not allow the operation
        │   └── CommandTimeoutError  a trainer did not acknowledge a command in time
        ├── EntryNotFoundError  no notebook entry has this id
        ├── EntryChangedError   another user changed the notebook entry in the meantime
        └── DataRemovedError    the data were removed by thinning, or are not part of the bundle

An error is a class, a message and a hint. `ConfigError.faults` lists the faults of settings, because forms read them.
`describe_fault` and `describe_error` make the text where it is shown. No code parses the text.
A message has the form: thing + rule + value. Next step.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

_MAX_VALUE_CHARS = 60
_MAX_KEY_CHARS = 80


class NoValue(Enum):
    """The type of `NO_VALUE`."""

    NO_VALUE = "no value"


NO_VALUE: Final = NoValue.NO_VALUE
"""Value of a fault that has no value. None cannot be used: a user can set it."""


@dataclass(frozen=True)
class Fault:
    """One fault of a user's input."""

    key: str = ""
    """Dotted setting, or the name of an option, a column or a file; empty if there is none."""
    value: object = NO_VALUE
    """The value that the user entered."""
    rule: str = ""
    """The broken rule, written after the key: "must be >= 1". A complete clause if there is no key."""
    hint: str = ""
    """The next step for the user: complete sentences, or empty."""
    related: tuple[str, ...] = ()
    """Other settings that the rule compares with `key`."""


def describe_fault(fault: Fault, *, with_key: bool = True) -> str:
    """Return a fault as a sentence, followed by its hint.

    Args:
        fault: The fault.
        with_key: Whether the sentence starts with the key. False for a text next to a form field.
    """
    key = shorten(fault.key, _MAX_KEY_CHARS) if with_key else ""
    key = f"The {key}" if key and " " in fault.key else key  # "sweep file" is a noun, "gate.tau_end" is a name
    clause = f"{key} {fault.rule}" if key else fault.rule
    if fault.key and not key:
        clause = f"{clause[:1].upper()}{clause[1:]}"
    got = "" if fault.value is NO_VALUE else f" (got {format_repr(fault.value)})"
    sentence = f"{clause.removesuffix('.')}{got}." if fault.rule else ""
    return " ".join(part for part in (sentence, fault.hint) if part)


def describe_error(error: BaseException) -> list[str]:
    """Return an error as sentences: one per fault of a `ConfigError`; the message of another error."""
    return [describe_fault(fault) for fault in error.faults] if isinstance(error, ConfigError) else [str(error)]


def shorten(text: str, longest: int = _MAX_VALUE_CHARS) -> str:
    """Cut a text after `longest` characters."""
    return text if len(text) <= longest else f"{text[:longest]} …"


def format_repr(value: object) -> str:
    """Return the `repr` of a value, cut to the length of a sentence."""
    try:
        return shorten(repr(value))
    except ValueError:  # repr refuses an integer with thousands of digits
        return "a number with thousands of digits"


class EmtcError(Exception):
    """Base class of all errors of this project. The text has one or two sentences for the user.

    Args:
        message: The cause.
        hint: The next step for the user: complete sentences, or empty.
    """

    def __init__(self, message: str = "", *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.hint) if part)


class ConfigError(EmtcError):
    """A setting is unknown, out of bounds or contradicts another.

    Args:
        faults: The faults. A text is the rule of a fault with the `key`, `value` and `hint` below.
        key: See `Fault`.
        value: See `Fault`.
        hint: See `Fault`.
    """

    def __init__(self, *faults: Fault | str, key: str = "", value: object = NO_VALUE, hint: str = "") -> None:
        self.faults = [
            fault if isinstance(fault, Fault) else Fault(key=key, value=value, rule=fault, hint=hint)
            for fault in faults
        ]
        super().__init__()
        self.args = tuple(self.faults)  # copy and pickle call the class with these

    def __str__(self) -> str:
        return "\n".join(map(describe_fault, self.faults))


def make_cuda_error(key: str) -> ConfigError:
    """Make the error for a setting that is cuda on a machine without a CUDA device."""
    rule = "must be auto or cpu, because torch finds no CUDA device here"
    return ConfigError(rule, key=key, value="cuda", hint="See: emtc doctor")


class ShapeError(EmtcError):
    """An array does not have the required dimensions."""


class PluginError(ConfigError):
    """A plug-in is missing, cannot be loaded or breaks its contract."""


class EnvUnavailableError(EmtcError):
    """An environment or map is unknown, or something that it needs is not installed."""


class EnvDataError(EmtcError):
    """An environment returned data that breaks the environment interface, such as a NaN reward."""


class CheckpointError(EmtcError):
    """A checkpoint is missing, truncated or of another configuration."""


class NonFiniteLossError(EmtcError):
    """Training produced NaN or infinity."""


class RunInterruptedError(EmtcError):
    """A run was killed before its first checkpoint."""


class ClusterError(EmtcError):
    """A cluster cannot be reached or lacks something that a run needs, or a worker on it failed."""


class StorageError(EmtcError):
    """The database cannot be opened, read or written."""


class FileMissingError(StorageError):
    """The SQLite file was moved or deleted while it was in use."""


class RunNotFoundError(StorageError):
    """No run, or more than one run, has this id."""


class RunStateError(StorageError):
    """The state of the run does not allow the operation."""


class CommandTimeoutError(RunStateError):
    """A trainer did not acknowledge a command in time."""


class EntryNotFoundError(StorageError):
    """No notebook entry has this id."""


class EntryChangedError(StorageError):
    """Another user changed the notebook entry in the meantime."""


class DataRemovedError(StorageError):
    """The data were removed by thinning, or are not part of the bundle. The database is not damaged."""
