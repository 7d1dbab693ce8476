"""`emtc doctor`: what is installed and usable, and how to get what is missing."""

import importlib.metadata
import importlib.util
import shutil
from typing import Any

from app.cli.output import AsJson, print_json, print_table
from emtc_core.envs.registry import doctor_rows

CHROME_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def doctor(json: AsJson = False) -> None:
    """Check device, search library, environments and browser."""
    rows = checks()
    if json:
        print_json({"ok": all(row["usable"] for row in rows if row["needed"]), "checks": rows})
    else:
        print_table(rows, title="emtc doctor", empty="Nothing was checked.")


def checks() -> list[dict[str, Any]]:
    """Run every check."""
    return [*_libraries(), _device(), _faiss(), _chrome(), *_environments()]


def _row(name: str, usable: bool, detail: str, *, advice: str = "", needed: bool = False) -> dict[str, Any]:
    return {"name": name, "usable": usable, "needed": needed, "detail": detail, "advice": "" if usable else advice}


def _libraries() -> list[dict[str, Any]]:
    rows = []
    for package in ("torch", "numba", "streamlit", "sqlalchemy", "umap-learn", "openTSNE"):
        try:
            rows.append(_row(package, True, importlib.metadata.version(package), needed=True))
        except importlib.metadata.PackageNotFoundError:
            rows.append(_row(package, False, "not installed", advice="pip install -e .", needed=True))
    return rows


def _device() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return _row("cuda", True, torch.cuda.get_device_name())
    return _row("cuda", False, "runs train on the CPU", advice="install a CUDA build of torch and a driver")


def _faiss() -> dict[str, Any]:
    found = importlib.util.find_spec("faiss") is not None
    return _row(
        "faiss", found, "GPU neighbour search" if found else "the CPU index is used", advice='pip install -e ".[gpu]"'
    )


def _chrome() -> dict[str, Any]:
    path = next(filter(None, map(shutil.which, CHROME_NAMES)), None)
    return _row("chrome", path is not None, path or "only the browser tests need it", advice="apt-get install chromium")


def _environments() -> list[dict[str, Any]]:
    return [
        _row(f"env:{row.env}", row.usable, row.reason, advice=row.how_to_get, needed=row.env == "skirmish")
        for row in doctor_rows()
    ]
