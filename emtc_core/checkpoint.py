"""Save and restore every stateful part of a run.

A checkpoint holds tensors and plain values only and is loaded with `weights_only`, so reading one
executes nothing. It is written beside its place and renamed, so a killed trainer never leaves half a file.
"""

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from emtc_core.errors import CheckpointError

FORMAT = 1


class CheckpointStore:
    """The checkpoints of one run in one folder, newest last."""

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, env_step: int, state: dict[str, Any]) -> Path:
        """Write one checkpoint durably, then drop the ones beyond `keep`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"checkpoint-{env_step:012d}.pt"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            torch.save({"format": FORMAT, "env_step": env_step, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        for old in self.list()[: -self._keep]:
            old.unlink(missing_ok=True)
        return path

    def list(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        return sorted(self.folder.glob("checkpoint-*.pt"))

    def load_latest(self) -> tuple[int, dict[str, Any]] | None:
        """Load the newest readable checkpoint, or None if there is none.

        Raises:
            CheckpointError: If checkpoints exist but none can be read.
        """
        paths = self.list()
        for path in reversed(paths):
            try:
                return load(path)
            except CheckpointError:
                continue
        if paths:
            raise CheckpointError(f"None of the {len(paths)} checkpoints in {self.folder} can be read.")
        return None


def load(path: Path) -> tuple[int, dict[str, Any]]:
    """Load one checkpoint without executing anything in it.

    Raises:
        CheckpointError: If the file is truncated, foreign or of another format.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path.name} has format {content['format']}, this version reads {FORMAT}.")
        return int(content["env_step"]), content["state"]
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as exc:
        raise CheckpointError(f"{path.name} is not a readable checkpoint: {exc}.") from exc
