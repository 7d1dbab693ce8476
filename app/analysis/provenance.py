"""Provenance of figures: one line per run for the metadata of exported files, and the versions that a run stores.

The line names the run, the hash of its settings and its code version, so that the numbers of a figure can be traced to
the code that computed them.
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
from app.analysis.settings import BUNDLE_KEY, CODE
from emtc_core import __version__
from storage.runs.rows import RunRow, format_seed, imported_label

LIBRARIES = (
    "torch", "numpy", "numba", "scipy", "scikit-learn", "sqlalchemy", "faiss-gpu",
    "gfootball", "jaxmarl", "jax", "smac", "smacv2", "pettingzoo", "gymnasium",
)  # fmt: skip
"""Libraries whose versions are stored with a run if they are installed."""


def library_versions() -> dict[str, str]:
    """Return the versions of this project, Python and the installed libraries."""
    versions = {"emtc_lab": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


@cache
def hash_core() -> str:
    """Hash the modules of `emtc_core`. Equal code has equal hashes, in a checkout and in a wheel."""
    digest = blake2b(digest_size=8)
    for file in sorted(Path(emtc_core.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def hash_config(config: Mapping[str, Any]) -> str:
    """Hash a configuration without its seed, code and bundle. Runs that differ only in these have equal hashes."""
    settings = {key: value for key, value in config.items() if key not in ("seed", BUNDLE_KEY, CODE)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def describe_runs(runs: Iterable[RunRow]) -> tuple[str, ...]:
    """Write one line per run: its id, algorithm, map, seed, the hash of its settings and its code version."""
    lines = []
    for run in runs:
        config = run.config
        parts = [
            f"run {run.id}: {config.get('algo')} on {run.map}",
            format_seed(config.get("seed")),
            f"config {hash_config(config)}",
        ]
        parts += [f"{name} {run.versions[name]}" for name in ("emtc_lab", "commit") if run.versions.get(name)]
        if (label := imported_label(config)) is not None:
            parts.append(f"imported ({label})")
        lines.append(", ".join(parts))
    return tuple(lines)
