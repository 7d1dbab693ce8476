"""What this machine has, without loading torch."""

from pathlib import Path

import psutil

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """Tell how much memory this machine, or the container that this is, has."""
    limits = [psutil.virtual_memory().total]
    for place in map(Path, _CGROUP_LIMITS):
        if place.is_file() and (text := place.read_text().strip()).isdecimal():
            limits.append(int(text))
    return min(limits)
