"""What is installed and usable here, and how to get what is missing: for `emtc doctor` and the page Health.

Torch and faiss are loaded in other processes: the app never loads them, and faiss may abort.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from emtc_core.envs.registry import doctor_rows
from emtc_core.errors import StorageError
from emtc_core.faiss_probe import probe_faiss
from emtc_core.install import FROM_CHECKOUT, how_to_install
from storage.files.places import VARIABLE, check_place, configured
from storage.guards import hide_passwords

CHROME_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NEEDED = ("torch", "numba", "streamlit", "sqlalchemy", "umap-learn", "openTSNE")
_ROOT = Path(__file__).resolve().parents[2]
_ASK_CUDA = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
_ASKING_TIMEOUT_S = 120


@dataclass(frozen=True)
class Check:
    """One thing that may be missing."""

    name: str
    usable: bool
    needed: bool
    """Whether nothing works without it."""
    detail: str
    advice: str
    """How to get it; empty where it is there."""


def run_checks() -> list[Check]:
    """Run every check; takes seconds."""
    gpu = _ask_cuda()
    return [*_libraries(), _device(gpu), _faiss(gpu), _chrome(), _apprise(), _files(), *_environments()]


def _check(name: str, usable: bool, detail: str, *, advice: str = "", needed: bool = False) -> Check:
    return Check(name, usable, needed, detail, "" if usable else advice)


def _libraries() -> list[Check]:
    checks = []
    for package in NEEDED:
        try:
            checks.append(_check(package, True, importlib.metadata.version(package), needed=True))
        except importlib.metadata.PackageNotFoundError:
            checks.append(_check(package, False, "not installed", advice=FROM_CHECKOUT, needed=True))
    return checks


def _device(gpu: str) -> Check:
    if gpu:
        return _check("cuda", True, gpu)
    return _check("cuda", False, "runs train on the CPU", advice="install a CUDA build of torch and a driver")


def _ask_cuda() -> str:
    """The GPU's name; empty when there is none or torch does not answer."""
    return _ask(_ASK_CUDA)


def _ask(question: str) -> str:
    """Let another interpreter answer; empty when it does not."""
    command = [sys.executable, "-c", question]
    try:
        asked = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=_ASKING_TIMEOUT_S
        )
    except (subprocess.SubprocessError, OSError):
        return ""
    return asked.stdout.strip()


def _faiss(gpu: str) -> Check:
    """Whether neighbours are searched on a GPU, by a search in another process."""
    without = "torch compares every node on the GPU" if gpu else "neighbours are searched on the CPU"
    install = how_to_install("gpu")
    probe = probe_faiss()
    if probe.state == "usable":
        return _check("faiss", True, f"{probe.version}, GPU neighbour search")
    if probe.state == "not installed":
        return _check("faiss", False, f"not installed; {without}", advice=install)
    if probe.state == "not loadable":
        return _check("faiss", False, f"it does not load; {without}", advice=f"{install} --force-reinstall")
    if probe.state == "no GPU support":
        return _check("faiss", False, f"{probe.version} without GPU support; {without}", advice=install)
    if probe.state == "no GPU":
        advice = "a GPU, its driver, and a torch for CUDA"
        return _check("faiss", False, f"{probe.version}, but there is no GPU to use; {without}", advice=advice)
    upgrade = f"{install} --upgrade"
    return _check("faiss", False, f"{probe.version} fails on this GPU; {without}: {probe.detail}", advice=upgrade)


def find_chrome() -> str | None:
    """Find an installed Chromium or Chrome."""
    return next(filter(None, map(shutil.which, CHROME_NAMES)), None)


def _chrome() -> Check:
    path = find_chrome()
    detail = path or "only the browser tests need it"
    return _check("chrome", path is not None, detail, advice="apt-get install chromium")


def _apprise() -> Check:
    found = importlib.util.find_spec("apprise") is not None
    detail = "alerts can be sent: set EMTC_NOTIFY" if found else "alerts stay in the app"
    return _check("apprise", found, detail, advice=how_to_install("alerts"))


def _files() -> Check:
    """Where the files of new runs go, and whether they can be written there."""
    try:
        setting = configured()
        check_place()
    except StorageError as exc:
        return _check("files", False, hide_passwords(os.environ.get(VARIABLE, "")), advice=str(exc))
    beside = f"beside the database; {VARIABLE} names a place for several machines"
    return _check("files", True, setting or beside)


def _environments() -> list[Check]:
    return [
        _check(f"env:{row.env}", row.usable, row.reason, advice=row.how_to_get, needed=row.env == "skirmish")
        for row in doctor_rows()
    ]
