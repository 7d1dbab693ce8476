"""Where a figure comes from: one line for each run behind it, for the metadata of exported files.

The versions that a run stores, so that its numbers can be traced to the code that made them.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import emtc_core
from app.analysis.settings import CODE, ORIGIN
from emtc_core import __version__
from storage.runs.rows import RunRow, imported_label, name_seed

LIBRARIES = (
    *(
        "torch",
        "numpy",
        "numba",
        "scipy",
        "scikit-learn",
        "sqlalchemy",
        "faiss-gpu-cu12",
        "gfootball",
        "jaxmarl",
        "jax",
    ),
    *("smac", "smacv2", "pettingzoo", "mpe2", "gymnasium"),
)


def library_versions() -> dict[str, str]:
    """Collect the versions that a run stores."""
    found = {"emtc_lab": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


@cache
def digest_of_core() -> str:
    """A digest of the method's own modules, which names the code that learns in a checkout and in a wheel alike."""
    digest = blake2b(digest_size=8)
    for file in sorted(Path(emtc_core.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def hash_config(config: Mapping[str, Any]) -> str:
    """A configuration's name, a digest of its content; runs that differ in nothing but their seed have one name."""
    settings = {key: value for key, value in config.items() if key not in ("seed", ORIGIN, CODE)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def describe_runs(runs: Iterable[RunRow]) -> tuple[str, ...]:
    """Write one line for each run: its id, what it is, its seed, the hash of its settings and its code."""
    return tuple(
        f"run {run.id}: {run.config.get('algo')} on {_map(run.config)}, {name_seed(run.config.get('seed'))}, "
        f"config {hash_config(run.config)}{_code(run.versions)}{_imported(run.config)}"
        for run in runs
    )


def _map(config: Mapping[str, Any]) -> Any:
    env = config.get("env")
    return env.get("map") if isinstance(env, Mapping) else None  # a foreign database may hold anything


def _imported(config: Mapping[str, Any]) -> str:
    return "" if (label := imported_label(config)) is None else f", imported ({label})"


def _code(versions: Mapping[str, Any]) -> str:
    known = [f"{name} {versions[name]}" for name in ("emtc_lab", "commit") if versions.get(name)]
    return f", {', '.join(known)}" if known else ""
