"""EMTC Lab under a name of its own: what scripts and notebooks use.

    import emtc_lab

    db = emtc_lab.open_database("runs/emtc.db")  # as storage.open_database
    policy = emtc_lab.load_policy("k3f9", "runs/emtc.db")
    actions = policy.act(obs, avail)

Installed as the module `emtc_lab`. Frames come without torch; `load_policy` loads it. Plug-ins find `register` and
`Mixed` here, which a mixer returns. A script's folder comes first on
Python's path, so a `storage.py` beside a script hides this project's package of that name: that is told here, with
the file, before anything breaks in the middle of an import.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.jobs.policies import load_policy as load_policy
    from emtc_core.learner.mixers.base import Mixed as Mixed
    from emtc_core.plugins import register as register
    from storage import RecordedRun as RecordedRun
    from storage import open_database as open_database

__all__ = ["Mixed", "RecordedRun", "load_policy", "open_database", "register"]
_PLACES = {
    "load_policy": "app.jobs.policies",
    "open_database": "storage",
    "RecordedRun": "storage",
    "Mixed": "emtc_core.learner.mixers.base",
    "register": "emtc_core.plugins",
}
_PACKAGES = ("emtc_core", "storage", "app")


def _locate(package: str) -> Path | None:
    """Find the file that `import package` takes, without importing it."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec was put there by hand
        return None
    return Path(spec.origin) if spec and spec.origin else None


def _refuse_others() -> None:
    """Refuse to work beside files that have the names of this project's packages.

    Raises:
        ImportError: With the file that stands in the way.
    """
    places = {package: _locate(package) for package in _PACKAGES}
    roots = [place.parents[1] for place in places.values() if place and place.name == "__init__.py"]
    own = next((root for root in roots if all((root / each / "__init__.py").is_file() for each in _PACKAGES)), None)
    for package, place in places.items():
        if own is None or place != own / package / "__init__.py":
            found = f"{place} has the name of a package" if place else f"there is no package {package}"
            raise ImportError(
                f"EMTC Lab cannot be imported here: {found} of EMTC Lab. Rename it, or start Python elsewhere."
            )


_refuse_others()


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
