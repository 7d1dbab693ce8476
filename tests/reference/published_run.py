"""What running published code takes: settings with small sizes, batches, rounded weights, float64, local variables.

Everything here finds their modules on the import path, where make_published_fixtures.py puts a checkout.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import yaml

from tests.reference.published_inputs import BLOCK, T_LIM, A, Arrays, Episode, N, O, S

SIZES = {
    "n_agents": N,
    "n_actions": A,
    "obs_shape": O,
    "state_shape": S,
    "unit_dim": BLOCK,
    "episode_limit": T_LIM,
    "rnn_hidden_dim": 8,
    "mixing_embed_dim": 6,
    "hypernet_embed": 7,
    "adv_hypernet_embed": 5,
}
PLAIN = {"use_cuda": False, "device": "cpu", "env": "sc2"}


class Watch:
    """Keeps some local variables of a routine as they are when it returns."""

    def __init__(self, code: CodeType, names: tuple[str, ...]) -> None:
        self._code, self._names = code, names
        self.seen: list[Arrays] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code is self._code:
            found = {name: frame.f_locals[name] for name in self._names if name in frame.f_locals}
            self.seen.append({k: torch.as_tensor(v).detach().numpy().copy() for k, v in found.items()})


@contextmanager
def in_double() -> Iterator[None]:
    """Let published learners compute in float64 on the CPU."""
    to_float, to_cuda = torch.Tensor.float, torch.Tensor.cuda
    torch.Tensor.float = torch.Tensor.double  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.Tensor.float, torch.Tensor.cuda = to_float, to_cuda  # type: ignore[method-assign]
        torch.set_default_dtype(torch.float32)


def load_settings(source: Path, algorithm: str, settings: Mapping[str, Any]) -> SimpleNamespace:
    """Read their defaults and their algorithm's file, then put sizes and `settings` over them."""
    files = [source / "config" / "default.yaml", source / "config" / "algs" / f"{algorithm}.yaml"]
    values: dict[str, Any] = {}
    for file in files:
        values |= yaml.safe_load(file.read_text())
    return SimpleNamespace(**(values | SIZES | PLAIN | settings))


def make_theirs(episodes: list[Episode], *, reals: torch.dtype, steps: int) -> Any:
    """Put episodes into their own batch, as their runner does."""
    from components.episode_buffer import EpisodeBatch
    from components.transforms import OneHot

    scheme = {
        "state": {"vshape": S, "dtype": reals},
        "obs": {"vshape": O, "group": "agents", "dtype": reals},
        "actions": {"vshape": (1,), "group": "agents", "dtype": torch.long},
        "avail_actions": {"vshape": (A,), "group": "agents", "dtype": torch.int},
        "reward": {"vshape": (1,), "dtype": reals},
        "terminated": {"vshape": (1,), "dtype": torch.uint8},
        "flag_win": {"vshape": (1,), "dtype": torch.uint8},
    }
    preprocess = {"actions": ("actions_onehot", [OneHot(out_dim=A)])}
    batch = EpisodeBatch(scheme, {"agents": N}, len(episodes), steps, preprocess=preprocess)
    for b, e in enumerate(episodes):
        length, here = len(e.reward), slice(b, b + 1)
        seen = {"state": e.state[None], "obs": e.obs[None], "avail_actions": e.avail[None].astype(int)}
        batch.update(seen, bs=here, ts=slice(0, length + 1))
        last = np.arange(length) == length - 1
        done = {
            "actions": e.action[None, ..., None],
            "reward": e.reward[None, :, None],
            "terminated": (last & e.terminated)[None, :, None],
            "flag_win": (last & e.won)[None, :, None],
        }
        batch.update(done, bs=here, ts=slice(0, length), mark_filled=False)
    return batch


def list_weights(modules: Mapping[str, torch.nn.Module]) -> np.ndarray:
    """Name all weights with their shapes, in the order of `flatten`."""
    each = ((part, name, v) for part, module in modules.items() for name, v in module.state_dict().items())
    return np.array([f"{part}.{name} {'x'.join(map(str, v.shape))}" for part, name, v in each])


def flatten(modules: Mapping[str, torch.nn.Module]) -> np.ndarray:
    values = [v for module in modules.values() for v in module.state_dict().values()]
    return torch.cat([v.flatten() for v in values]).numpy().copy()


def round_weights(module: torch.nn.Module) -> None:
    """Round weights to what float16 holds, and those of wide layers to 1/16, which packs well."""
    for value in module.parameters():
        fine = value.numel() < 1000
        value.data = (value.data.half() if fine else (16.0 * value.data).round() / 16.0).to(value.dtype)
