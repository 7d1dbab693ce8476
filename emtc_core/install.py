"""Commands to install or upgrade what is missing, and the memory of this machine.

EMTC Lab is installed from a checkout or from a wheel; it is not on a package index. In a checkout, an extra is
installed with `pip install -e ".[name]"`. With a wheel, the packages of the extra are installed by their names.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

import psutil

CHECKOUT: Final = Path(__file__).resolve().parent.parent
FROM_CHECKOUT: Final = "pip install -e . in a checkout of EMTC Lab"
"""Install command for texts that are read on another machine."""
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
