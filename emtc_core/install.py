"""What this machine has, and the words that get what is missing: no hint names a package that no index has.

EMTC Lab is installed from a checkout or from a wheel, never by its name. In a checkout an extra is `-e ".[name]"`;
beside a wheel it is the packages that the extra stands for.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Final

import psutil

CHECKOUT: Final = Path(__file__).resolve().parent.parent
FROM_CHECKOUT: Final = "pip install -e . in a checkout of EMTC Lab"
"""For texts that are read on another machine."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def how_to_install(extra: str) -> str:
    """Write the command that installs what an extra of this project needs; it works where it is read.

    >>> how_to_install("alerts")
    'pip install -e ".[alerts]"'
    """
    if _is_checkout():
        here = "." if Path.cwd() == CHECKOUT else str(CHECKOUT)
        return f'pip install -e "{here}[{extra}]"'
    wanted = _requirements_of(extra)
    return f"pip install {' '.join(wanted)}" if wanted else f'pip install -e ".[{extra}]"'


def installed_marks() -> tuple[int, ...]:
    """When the folders that Python imports from were last changed: other times as soon as something is installed."""
    return tuple(Path(place).stat().st_mtime_ns for place in dict.fromkeys(sys.path) if Path(place).is_dir())


def how_to_upgrade() -> str:
    """Write how a newer version of this project is got."""
    if _is_checkout():
        return f"git -C {'.' if Path.cwd() == CHECKOUT else CHECKOUT} pull"
    return "pip install FILE.whl, with a newer wheel"


def _is_checkout() -> bool:
    return (CHECKOUT / "pyproject.toml").is_file()


def _requirements_of(extra: str) -> list[str]:
    try:
        declared = requires("emtc-lab") or []
    except PackageNotFoundError:
        return []
    marked = re.compile(rf"^([^;]+?)\s*;.*\bextra\s*==\s*['\"]{re.escape(extra)}['\"]$")
    return [f"'{found[1]}'" for line in declared if (found := marked.match(line))]


def memory_bytes() -> int:
    """Memory of this machine, or of the container that this is [bytes]."""
    limits = [psutil.virtual_memory().total]
    for place in map(Path, _CGROUP_LIMITS):
        if place.is_file() and (text := place.read_text().strip()).isdecimal():
            limits.append(int(text))
    return min(limits)
