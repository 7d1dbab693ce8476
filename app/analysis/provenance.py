"""Where a figure comes from: one line for each run behind it, for the metadata of exported files.

The versions that a run stores, so that its numbers can be traced to the code that made them.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from app.analysis.settings import ORIGIN
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


def hash_config(config: Mapping[str, Any]) -> str:
    """A configuration's name, a digest of its content; runs that differ in nothing but their seed have one name."""
    settings = {key: value for key, value in config.items() if key not in ("seed", ORIGIN)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def describe_runs(
    configs: Mapping[str, Mapping[str, Any]], versions: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[str, ...]:
    """Write one line for each run: its id, what it is, its seed, the hash of its settings and its code.

    Args:
        configs: Run id → configuration as stored.
        versions: Run id → versions as stored, where known.
    """
    return tuple(
        f"run {run_id}: {config.get('algo')} on {_map(config)}, seed {config.get('seed')}, "
        f"config {hash_config(config)}{_code((versions or {}).get(run_id, {}))}"
        for run_id, config in configs.items()
    )


def _map(config: Mapping[str, Any]) -> Any:
    env = config.get("env")
    return env.get("map") if isinstance(env, Mapping) else None  # a foreign database may hold anything


def _code(versions: Mapping[str, Any]) -> str:
    known = [f"{name} {versions[name]}" for name in ("emtc_lab", "commit") if versions.get(name)]
    return f", {', '.join(known)}" if known else ""
