"""The runs table by hand: every run looked at in turn, every condition told in Python."""

import math
import re
from typing import Any

from emtc_core.config.resolve import flatten_tree
from storage.queries.gate_state import ACTIVE_SHARE

TEXTS = {"id": "id", "name": "name", "note": "notes", "env": "env", "map": "map", "algo": "algo", "sweep": "sweep_id"}
NUMBERS = {"seed": "seed", "env_steps": "env_steps", "win_rate": "win_rate", "return": "return_mean", "mu_w": "mu_w"}


def status_of(run: dict[str, Any]) -> str:
    """Runs here belong to another machine, whose heartbeats ceased long ago or never began."""
    return "lost" if run["status"] in ("running", "paused") else run["status"]


def gate_of(run: dict[str, Any]) -> str:
    removed = run["gate_removed"]
    return "none" if removed is None else "active" if removed >= ACTIVE_SHARE else "idle"


def holds(run: dict[str, Any], text: str) -> bool:
    """Tell whether a run is what one word or comparison asks."""
    found = re.fullmatch(r"([\w.]+)(!=|<=|>=|=|<|>)(.*)", text)
    if found is None:
        places = [run[name] for name in ("name", "id", "notes", "algo", "env", "map")] + run["tags"]
        wanted = text.lower()
        paper = re.fullmatch(r"(emtc|emu)\((\w+)\)", wanted)
        also = f"{paper[1]}-{paper[2]}" if paper else wanted
        return any(wanted in place.lower() or also in place.lower() for place in places)
    key, sign, value = found.groups()
    if sign == "!=":
        return not holds(run, f"{key}={value}")
    if "," in value:
        return any(holds(run, f"{key}={part}") for part in value.split(","))
    if key == "tag":
        return value.lower() in [tag.lower() for tag in run["tags"]]
    if key == "status":
        return status_of(run) == value
    if key == "gate":
        return gate_of(run) == value
    if key in TEXTS:
        paper = re.fullmatch(r"(emtc|emu)\((\w+)\)", value.lower())
        value = f"{paper[1]}-{paper[2]}" if paper and key == "algo" else value
        return run[TEXTS[key]] is not None and run[TEXTS[key]].lower() == value.lower()
    if key in NUMBERS:
        return compare(run[NUMBERS[key]], sign, value)
    settings = flatten_tree(run["config"])
    return key in settings and compare(settings[key], sign, value)


def compare(stored: Any, sign: str, value: str) -> bool:
    if stored is None:
        return sign == "=" and value.lower() in ("none", "null")
    if isinstance(stored, bool | str):
        return sign == "=" and str(stored).lower() == value.lower()
    try:
        number = float(value)
    except ValueError:
        return False
    if sign == "=":
        is_whole = re.fullmatch(r"[+-]?\d+", value) is not None
        return stored == number if is_whole else math.isclose(stored, number, rel_tol=5e-6)
    return {"<": stored < number, "<=": stored <= number, ">": stored > number, ">=": stored >= number}[sign]


def value_for(run: dict[str, Any], sort: str) -> Any:
    if sort == "status":
        return status_of(run)
    if sort == "progress":
        return run["env_steps"] / run["target_steps"]
    if sort == "duration":
        last = run["ended_at"] or run["heartbeat_at"]
        return (last - run["started_at"]).total_seconds() if run["started_at"] and last else None
    if sort == "gate":
        return run["gate_removed"]
    if sort == "preset":
        return run["config"]["preset"]
    if sort == "final_rate":
        return None  # these runs have no evaluations
    return run[{"created": "created_at", "return": "return_mean"}.get(sort, sort)]


def in_order(runs: list[dict[str, Any]], sort: str) -> list[dict[str, Any]]:
    """Sort by a column, missing values last; equal ones newest first, then by id."""
    newest = sorted(sorted(runs, key=lambda run: run["id"]), key=lambda run: run["created_at"], reverse=True)
    if not sort:
        waits = [run for run in newest if run["status"] == "queued" and run["sweep_id"]]
        first = [run for run in newest if run["status"] == "queued" and not run["sweep_id"]]
        rest = [run for run in newest if run["status"] != "queued"]
        return first + waits + rest
    column = sort.removeprefix("-")
    known = [run for run in newest if value_for(run, column) is not None]
    unknown = [run for run in newest if value_for(run, column) is None]
    return sorted(known, key=lambda run: value_for(run, column), reverse=sort.startswith("-")) + unknown
