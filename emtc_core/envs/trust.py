"""Check whether a module that a stored run or a file names may be imported on this machine.

The map of a run may be an import path (environment `pettingzoo`), and the run may come from another user.
`EMTC_ENV_MODULES` is a comma-separated list of the modules that the user trusts; a listed package includes its modules.
A module that a user types into a command is allowed for this command and its child processes. Python code that calls
`make_env` is not checked. A child process searches modules in its parent's working folder
(`emtc_core.user_modules`).
"""

import os
from difflib import get_close_matches

from emtc_core.envs.zoo.examples import EXAMPLES
from emtc_core.errors import EnvUnavailableError

VARIABLE = "EMTC_ENV_MODULES"
_EXPORT_MODULE = "emtc_core.envs.pettingzoo_export"


def is_allowed(map: str) -> bool:
    """Check whether the module of `module:factory` is listed. The games in `EXAMPLES` are always allowed."""
    if map in EXAMPLES:
        return True
    module = _get_module(map)
    return any(module == listed or module.startswith(f"{listed}.") for listed in (_EXPORT_MODULE, *_list_modules()))


def allow(map: str) -> None:
    """Allow the module of `module:factory` in this process and its child processes."""
    if not is_allowed(map):
        os.environ[VARIABLE] = ",".join([*_list_modules(), _get_module(map)])


def check_listed(map: str) -> None:
    """Check that the module of `module:factory` is listed, before it is imported.

    Raises:
        EnvUnavailableError: If it is not listed.
    """
    if not is_allowed(map):
        raise EnvUnavailableError(describe_unlisted(map), reason="unlisted", subject="env.map")


def describe_unlisted(map: str) -> str:
    """Make the message for a module that is not listed, with the environment variable to set."""
    if close := get_close_matches(map, EXAMPLES, n=1, cutoff=0.7):
        return f"There is no wrapped game {map[:80]!r}. Did you mean {close[0]}?"
    module = _get_module(map)[:80]
    return (
        f"The module {module!r} is not imported, because {VARIABLE} of this machine does not list it. "
        f"If you know it and trust it, start again with {VARIABLE}={module}"
    )


def _get_module(map: str) -> str:
    return map.partition(":")[0].strip()


def _list_modules() -> list[str]:
    entries = os.environ.get(VARIABLE, "").replace(",", " ").split()
    return [module for entry in entries if (module := _get_module(entry))]
