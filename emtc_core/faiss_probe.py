"""Check in a separate process whether the installed faiss can search on this machine's GPU.

A faiss wheel without code for the GPU calls `abort()` at the first `add` or `search`, which Python cannot catch. So a
separate process (`emtc_core.memory.index.faiss_check`) builds and queries an index first. This module does not import
torch or faiss, so the app can use it too.
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
_MAX_DETAIL_CHARS = 200
_ROOT = Path(__file__).resolve().parents[1]

State = Literal["usable", "not installed", "not loadable", "no GPU support", "no GPU", "fails"]


@dataclass(frozen=True)
class FaissProbe:
    """Result of the check."""

    state: State
    version: str = ""
    detail: str = ""
    """The error text; empty without an error."""

    @property
    def reason(self) -> str:
        """Why faiss cannot be used, for one line of a log; empty if it can."""
        name = f"faiss {self.version}".strip()
        return {
            "usable": "",
            "not installed": "faiss is not installed",
            "not loadable": f"{name} cannot be imported ({self.detail})",
            "no GPU support": f"{name} is built without GPU support",
            "no GPU": f"{name} finds no GPU",
            "fails": f"{name} fails on this GPU ({self.detail})",
        }[self.state]


def probe_faiss(device: str = "cuda", *, timeout_s: float = TIMEOUT_S) -> FaissProbe:
    """Build and query a faiss index in a separate process. This takes seconds.

    Args:
        device: "cuda" or "cuda:1".
        timeout_s: The check fails after this time [s].
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
    fields: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            fields |= json.loads(line)
    if "state" in fields and done.returncode == 0:
        return FaissProbe(fields["state"], fields.get("version", ""), fields.get("detail", "")[:_MAX_DETAIL_CHARS])
    return FaissProbe("fails", fields.get("version", ""), _describe_exit(done))


def _describe_exit(done: "subprocess.CompletedProcess[str]") -> str:
    """Describe how a process ended, with the last line of its stderr."""
    code = done.returncode
    reason = f"exit code {code}" if code >= 0 else f"its process ended with {signal.Signals(-code).name}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return f"{reason}: {lines[-1][:_MAX_DETAIL_CHARS]}" if lines else reason
