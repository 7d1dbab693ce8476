"""Which modules may be imported because a stored row or a file names them: those that this machine lists.

A run's map may be an import path (`pettingzoo`), and rows come from colleagues. `EMTC_ENV_MODULES` lists the modules
that this machine's user trusts, with commas between them; a listed package brings its modules along. What a user types
into a command is allowed for that command and the processes that it starts. Python code that calls `make_env` itself
decides for itself. A process that another one started looks for modules in that one's folder
(`emtc_core.plugins.home_folder`).
"""

import os
from difflib import get_close_matches

from emtc_core.envs.zoo.examples import EXAMPLES
from emtc_core.errors import EnvUnavailableError

VARIABLE = "EMTC_ENV_MODULES"
_OWN = "emtc_core.envs.pettingzoo_export"


def is_allowed(map: str) -> bool:
    """Whether this machine's user lists the module of `module:factory`; a wrapped game's is this project's."""
    if map in EXAMPLES:
        return True
    module = _module_of(map)
    return any(module == listed or module.startswith(f"{listed}.") for listed in (_OWN, *_listed()))


def allow(map: str) -> None:
    """Allow the module of `module:factory` in this process and in those that it starts."""
    if not is_allowed(map):
        os.environ[VARIABLE] = ",".join([*_listed(), _module_of(map)])


def refuse_unlisted(map: str) -> None:
    """Refuse a module that this machine's user does not list, before it is imported.

    Raises:
        EnvUnavailableError: If it is not listed.
    """
    if not is_allowed(map):
        raise EnvUnavailableError(why_unlisted(map), reason="unlisted", subject="env.map")


def why_unlisted(map: str) -> str:
    """Sentence that a module is not listed, and how to list it."""
    if close := get_close_matches(map, EXAMPLES, n=1, cutoff=0.7):
        return f"There is no wrapped game {map[:80]!r}. Did you mean {close[0]}?"
    module = _module_of(map)[:80]
    return (
        f"The module {module!r} is not imported, because {VARIABLE} of this machine does not list it. "
        f"If you know it and trust it, start again with {VARIABLE}={module}"
    )


def _module_of(map: str) -> str:
    return map.partition(":")[0].strip()


def _listed() -> list[str]:
    entries = os.environ.get(VARIABLE, "").replace(",", " ").split()
    return [module for entry in entries if (module := _module_of(entry))]
