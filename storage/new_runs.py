"""The columns of a new run: an id, and what follows from its configuration."""

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from storage.models import Run

_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"  # no 0/o, 1/l/i
_ID_LENGTH = 8


def new_run_values(connection: Connection, config: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """Fill the columns of a queued run that follow from its configuration, with an id that no run has."""
    env, map_name, algo, seed = _describe(config)
    return {
        "id": _new_id(connection),
        "name": name or f"{algo} {map_name} seed {seed}",
        "env": env,
        "map": map_name,
        "algo": algo,
        "seed": seed,
        "config": dict(config),
        "status": "queued",
        "env_steps": 0,
        "created_at": datetime.now(UTC),
        "tags": [],
        "notes": "",
    }


def _describe(config: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Read env, map, algorithm and seed from a resolved configuration."""
    env = config.get("env", "")
    nested = env if isinstance(env, Mapping) else {}
    name = nested.get("name", nested.get("env", "")) if nested else env
    map_name = config.get("map") or nested.get("map", "")
    return str(name), str(map_name), str(config.get("algo", "")), int(config.get("seed", 0))


def _new_id(connection: Connection) -> str:
    while True:
        run_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
        if connection.execute(select(Run.id).where(Run.id == run_id)).first() is None:
            return run_id
