"""Every error that EMTC Lab raises on purpose.

    EmtcError
    ├── ConfigError             a setting is unknown, out of bounds or contradicts another
    │   └── PluginError         something from outside this project is missing, broken or breaks its contract
    ├── ShapeError              an array does not have the dimensions that its reader needs
    ├── EnvUnavailableError     an environment or map is unknown here, or something it needs is missing
    ├── CheckpointError         a checkpoint is missing, truncated or of another configuration
    ├── NonFiniteLossError      training produced NaN or infinity
    ├── ClusterError            a cluster cannot be reached, cannot do the work, or keeps no worker
    ├── RunInterruptedError     somebody ended a run before it could leave a checkpoint
    └── StorageError            the database cannot be opened, read or written
        ├── RunNotFoundError    no run, or more than one, answers to an id
        ├── RunStateError       the run is not in a state that allows what was asked
        │   └── UnheardError    a trainer was asked for something and took no notice yet
        ├── EntryNotFoundError  no notebook entry has this id
        ├── EntryChangedError   somebody else changed a notebook entry meanwhile
        ├── LeftOutError        what was asked for was thinned away, or left out of a bundle, on purpose
        └── NewerDatabaseError  the database was written by a newer version

An error carries data. `ConfigError.faults` lists what is wrong with settings; every other error has a `reason` and a
`subject`. Text is made by `describe_fault` and `describe_error` where it is shown, and it is never parsed.
A message reads: thing + rule + value. Next step.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

_LONGEST_SHOWN = 60
_LONGEST_KEY = 80


class NoValue(Enum):
    """The type of `NO_VALUE`."""

    NO_VALUE = "no value"


NO_VALUE: Final = NoValue.NO_VALUE
"""The value of a fault that is not about a value; None is a value that a user can give."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with what a user gave."""

    key: str = ""
    """Dotted setting, or another name of what was given (an option, a column); empty if there is none to name."""
    value: object = NO_VALUE
    """The value as it was given."""
    rule: str = ""
    """What must be, after the key: "must be >= 1". A complete clause if there is no key."""
    hint: str = ""
    """What to do: complete sentences, or empty."""
    related: tuple[str, ...] = ()
    """Other settings that the rule compares `key` with."""


def describe_fault(fault: Fault, *, with_key: bool = True) -> str:
    """Write a fault as a sentence, and its hint after it.

    Args:
        fault: What is wrong.
        with_key: Start with the key; without it the sentence starts with the rule, for a text next to a form field.
    """
    key = shorten(fault.key, _LONGEST_KEY) if with_key else ""
    key = f"The {key}" if key and " " in fault.key else key  # "sweep file" is a noun, "gate.tau_end" is a name
    clause = f"{key} {fault.rule}" if key else fault.rule
    if fault.key and not key:
        clause = f"{clause[:1].upper()}{clause[1:]}"
    got = "" if fault.value is NO_VALUE else f" (got {quote(fault.value)})"
    sentence = f"{clause.removesuffix('.')}{got}." if fault.rule else ""
    return " ".join(part for part in (sentence, fault.hint) if part)


def describe_error(error: BaseException) -> list[str]:
    """Write an error as sentences: one for each fault of a `ConfigError`, else its message."""
    return [describe_fault(fault) for fault in error.faults] if isinstance(error, ConfigError) else [str(error)]


def shorten(text: str, longest: int = _LONGEST_SHOWN) -> str:
    """Cut a long text for a sentence."""
    return text if len(text) <= longest else f"{text[:longest]} …"


def quote(value: object) -> str:
    """Write a value as it was given, short enough for a sentence."""
    try:
        return shorten(repr(value))
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"


class EmtcError(Exception):
    """Base of all deliberate errors; its text is one or two sentences fit for a user.

    Args:
        message: The cause.
        hint: What to do: complete sentences, or empty.
        reason: Which of the faults of this type it is, as a fixed word such as "read_only", for callers and tests.
        subject: What it is about: the id of a run, a path, a setting, a column.
    """

    def __init__(self, message: str = "", *, hint: str = "", reason: str = "", subject: object = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.reason = reason
        self.subject = subject

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.hint) if part)


class ConfigError(EmtcError):
    """A setting is unknown, out of bounds or contradicts another.

    Args:
        faults: What is wrong. A text is the rule of a fault that has this `key`, `value` and `hint`.
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
        self.args = tuple(self.faults)  # by which it is copied and pickled

    def __str__(self) -> str:
        return "\n".join(map(describe_fault, self.faults))


def missing_cuda(key: str) -> ConfigError:
    """The error about a setting that is cuda on a machine where torch finds no CUDA device."""
    rule = "must be auto or cpu, because torch finds no CUDA device here"
    return ConfigError(rule, key=key, value="cuda", hint="See: emtc doctor")


class ShapeError(EmtcError):
    """An array does not have the dimensions that its reader needs."""


class PluginError(ConfigError):
    """Something from outside this project is missing, cannot be loaded or breaks its contract."""


class EnvUnavailableError(EmtcError):
    """An environment or map is unknown here, or something that it needs is missing."""


class CheckpointError(EmtcError):
    """A checkpoint is missing, truncated or of another configuration."""


class NonFiniteLossError(EmtcError):
    """Training produced NaN or infinity."""


class RunInterruptedError(EmtcError):
    """Somebody ended a run before it could leave a checkpoint."""


class ClusterError(EmtcError):
    """A cluster cannot be reached, cannot do what is asked of it, or keeps no worker at work."""


class StorageError(EmtcError):
    """The database cannot be opened, read or written."""


class RunNotFoundError(StorageError):
    """No run, or more than one, answers to an id."""


class RunStateError(StorageError):
    """The run is not in a state that allows what was asked."""


class UnheardError(RunStateError):
    """A trainer was asked for something and took no notice yet."""


class EntryNotFoundError(StorageError):
    """No notebook entry has this id."""


class EntryChangedError(StorageError):
    """Somebody else changed a notebook entry meanwhile."""


class LeftOutError(StorageError):
    """What was asked for was thinned away, or left out of a bundle, on purpose: nothing is wrong."""


class NewerDatabaseError(StorageError):
    """The database was written by a newer version of EMTC Lab."""
