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

A message reads: thing + rule + value. Next step.
"""


class EmtcError(Exception):
    """Base of all deliberate errors; its text is one or two sentences fit for a user."""


class ConfigError(EmtcError):
    """A setting is unknown, out of bounds or contradicts another."""


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
