"""Commands to install or upgrade what is missing, the installed version of faiss, and the memory of this machine.

EMTC Lab is installed from a checkout or from a wheel; it is not on a package index. In a checkout, an extra is
installed with `pip install -e ".[name]"`. With a wheel, the packages of the extra are installed by their names.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final, NamedTuple

import psutil

CHECKOUT: Final = Path(__file__).resolve().parent.parent
FROM_CHECKOUT: Final = "pip install -e . in a checkout of EMTC Lab"
"""Install command for texts that are read on another machine."""
FIRST_FAISS: Final = (1, 15)
"""The first usable version of `faiss-gpu`. Earlier wheels abort the process on Hopper GPUs."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def get_install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra on this machine.

    >>> how_to_install("alerts")
    'pip install -e ".[alerts]"'
    """
    if _is_checkout():
        here = "." if Path.cwd() == CHECKOUT else str(CHECKOUT)
        return f'pip install -e "{here}[{extra}]"'
    requirements = _list_requirements(extra)
    return f"pip install {' '.join(requirements)}" if requirements else f'pip install -e ".[{extra}]"'


class Faiss(NamedTuple):
    """The installed package `faiss-gpu`."""

    version: str
    """Empty if it is not installed."""
    is_usable: bool
    """Whether it has at least the version `FIRST_FAISS`."""


def find_faiss() -> Faiss:
    """Find the installed version of `faiss-gpu`. faiss is not imported."""
    try:
        text = version("faiss-gpu")
    except PackageNotFoundError:
        return Faiss("", is_usable=False)
    numbers = [int(part) for part in re.findall(r"\d+", text)[:2]]
    return Faiss(text, is_usable=tuple(numbers) >= FIRST_FAISS)


def read_install_times() -> tuple[int, ...]:
    """Return the modification times of the import folders [ns]. They change when a package is installed."""
    return tuple(Path(folder).stat().st_mtime_ns for folder in dict.fromkeys(sys.path) if Path(folder).is_dir())


def get_upgrade_command() -> str:
    """Return the command that upgrades this project."""
    if _is_checkout():
        return f"git -C {'.' if Path.cwd() == CHECKOUT else CHECKOUT} pull"
    return "pip install FILE.whl, with a newer wheel"


def _is_checkout() -> bool:
    return (CHECKOUT / "pyproject.toml").is_file()


def _list_requirements(extra: str) -> list[str]:
    try:
        lines = requires("emtc-lab") or []
    except PackageNotFoundError:
        return []
    pattern = re.compile(rf"^([^;]+?)\s*;.*\bextra\s*==\s*['\"]{re.escape(extra)}['\"]$")
    return [f"'{match[1]}'" for line in lines if (match := pattern.match(line))]


def memory_bytes() -> int:
    """Return the memory of this machine, or the memory limit of its container [bytes]."""
    limits = [psutil.virtual_memory().total]
    for path in map(Path, _CGROUP_LIMITS):
        if path.is_file() and (text := path.read_text().strip()).isdecimal():
            limits.append(int(text))
    return min(limits)
