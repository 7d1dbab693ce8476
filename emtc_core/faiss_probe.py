"""Whether the installed faiss searches on the GPU of this machine, checked in another process.

A faiss wheel without code for the GPU calls `abort()` at the first `add` or `search`, which no `except` catches. So a
process that may end like this (`emtc_core.memory.index.faiss_check`) builds and queries an index first. Nothing here
imports torch or faiss, so the app may use it, too.
"""

import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CHECK = "emtc_core.memory.index.faiss_check"
TIMEOUT_S = 180
"""A wheel without machine code for a GPU compiles its PTX at the first call, which can take a minute."""
_LONGEST_REASON = 200
_ROOT = Path(__file__).resolve().parents[1]

State = Literal["usable", "not installed", "not loadable", "no GPU support", "no GPU", "fails"]


@dataclass(frozen=True)
class FaissProbe:
    """What the check found."""

    state: State
    version: str = ""
    detail: str = ""
    """The error, where there is one."""

    @property
    def reason(self) -> str:
        """Why faiss cannot be used, for one line of a log."""
        words = f"faiss {self.version}".strip()
        return {
            "usable": "",
            "not installed": "faiss is not installed",
            "not loadable": f"{words} cannot be imported ({self.detail})",
            "no GPU support": f"{words} is built without GPU support",
            "no GPU": f"{words} finds no GPU",
            "fails": f"{words} fails on this GPU ({self.detail})",
        }[self.state]


def probe_faiss(device: str = "cuda", *, timeout_s: float = TIMEOUT_S) -> FaissProbe:
    """Build and query an index of faiss in another process; takes seconds.

    Args:
        device: "cuda" or "cuda:1".
        timeout_s: After how long the check counts as failed.
    """
    if importlib.util.find_spec("faiss") is None:
        return FaissProbe("not installed")
    command = [sys.executable, "-m", CHECK, device]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return FaissProbe("fails", detail=f"no answer within {timeout_s:.0f} s")
    except OSError as exc:
        return FaissProbe("fails", detail=str(exc))
    found: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    if "state" in found and done.returncode == 0:
        return FaissProbe(found["state"], found.get("version", ""), found.get("detail", "")[:_LONGEST_REASON])
    return FaissProbe("fails", found.get("version", ""), _describe_end(done))


def _describe_end(done: "subprocess.CompletedProcess[str]") -> str:
    """Describe how a process ended, with the last line of its errors."""
    code = done.returncode
    ended = f"exit code {code}" if code >= 0 else f"its process ended with {signal.Signals(-code).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"{ended}: {lines[-1][:_LONGEST_REASON]}" if lines else ended
