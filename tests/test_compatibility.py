"""What somebody's scripts, links and databases rest on since 1.0 is still there: names may come, none may go.

`python -m tests.test_compatibility` notes what there is now; it is run once, at the release of a new major version.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from typer.main import get_command

from app.cli.main import COMMANDS, make_app
from app.figures.registry import FIGURES, TABLES
from emtc_core.config.resolve import current_key, describe_fields
from emtc_core.config.run import PRESETS, list_algos
from emtc_core.metrics import METRICS
from storage.api import OpenDatabase, RecordedRun, open_database
from storage.bundles.manifest import FORMAT, VERSION
from storage.models import Base

NOTED = Path(__file__).parent / "assets" / "interface_1.json"
Names = dict[str, list[str]]


def describe() -> dict[str, Names]:
    """Every name that others may rest on, by kind and owner."""
    return {
        "commands": commands(),
        "python": {"open_database": parameters(open_database), **methods(OpenDatabase), **methods(RecordedRun)},
        "columns": {name: sorted(table.columns.keys()) for name, table in sorted(Base.metadata.tables.items())},
        "metrics": {name: [METRICS[name].unit] for name in sorted(METRICS)},
        "names": {
            "settings": sorted(option.key for option in describe_fields()),
            "presets": sorted(PRESETS),
            "algorithms": sorted(list_algos()),
            "figures": sorted(FIGURES.keys()),
            "tables": sorted(TABLES),
            "bundles": [f"{FORMAT} {VERSION}"],
        },
    }


def commands() -> Names:
    found: Names = {}
    for name, about in COMMANDS.items():
        if not about.hidden:
            gather(name, get_command(make_app(name)).commands[name], found)  # type: ignore[attr-defined]
    return dict(sorted(found.items()))


def gather(words: str, command: Any, found: Names) -> None:
    found[words] = sorted(flag for option in command.params for flag in option.opts if flag.startswith("--"))
    for name, inner in getattr(command, "commands", {}).items():
        gather(f"{words} {name}", inner, found)


def methods(kind: type) -> Names:
    own = {name: getattr(kind, name) for name in vars(kind) if not name.startswith("_")}
    return {f"{kind.__name__}.{name}": parameters(each) for name, each in sorted(own.items())}


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters) if callable(function) else []


def test_nothing_that_was_released_is_gone() -> None:
    now, gone = describe(), []
    for kind, owners in json.loads(NOTED.read_text()).items():
        for owner, names in owners.items():
            known = now[kind].get(owner)
            gone += [f"{kind}: {owner}"] if known is None else []
            gone += [
                f"{kind}: {owner} {name}" for name in names if known is not None and current_key(name) not in known
            ]
    assert gone == [], "scripts rest on these: keep an alias, or wait for the next major version"


if __name__ == "__main__":
    NOTED.write_text(json.dumps(describe(), indent=1, ensure_ascii=False) + "\n")
