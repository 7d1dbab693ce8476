"""The versions that a run stores, so that its numbers can be traced to the code that made them."""

import platform
from importlib.metadata import PackageNotFoundError, version

from emtc_core import __version__

LIBRARIES = ("torch", "numpy", "numba", "scipy", "sqlalchemy", "gfootball", "jaxmarl", "pettingzoo")


def library_versions() -> dict[str, str]:
    """Collect the versions that a run stores."""
    found = {"emtc_lab": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
