"""A GPU made of shapes: updates of every algorithm on CUDA tensors that have a type and a place but no values.

Run as a program it prints what each algorithm's update raised. It is a process of its own because a build of PyTorch
without CUDA lacks more than a device, and what stands in for that is put into PyTorch itself:

    device guards   none to choose a device; that of the meta device does nothing, which is right here
    GRU cell        no shapes for the fused kernel; cuDNN's has them, but is missing too
    backward        the engine asks the driver for streams; here every leaf of the graph gets a gradient of zeros
    modules         `Module.to` swaps contents, which fake parameters refuse
    pinned memory   needs a driver, and so do events

Two things a GPU refuses or pays for that shapes let pass are refused: products of different types, and copies to the
host, for which the host would wait.
"""

import ctypes
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from emtc_core.config.memory import EmbedConfig
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.embedder.fit import compute_losses
from emtc_core.embedder.networks import Embedder
from emtc_core.learner.learner import make_learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.targets import incentive_inputs
from emtc_core.replay_buffer.buffer import ReplayBuffer
from tests.core.learner_cases import BLOCKS, hard_episodes, make_config, make_memory

GPU = torch.device("cuda:0")
CUDA, META = 1, 14  # c10::DeviceType
N_DEVICE_TYPES = 20
GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
CURIOUS = {"curiosity": {"scale": 0.1}}
RESUMED = ("emtc-qplex", "emu-cds", "dmix", "mappo")
SECTIONS: dict[str, dict[str, Any]] = {
    "emc": {"ec": {"enabled": True}, "incentive": {"enabled": False}, **CURIOUS},
    "emu-qplex": CURIOUS,
    "cds": {"cds": {"beta": 0.1, "policy_mixture": "agents"}},
    "emtc-cds": {"cds": {"beta": 0.1, "policy_mixture": "heads", "replay": "episode_per"}},
    "emu-cds": {"cds": {"beta": 0.1, "policy_mixture": "histories"}, **CURIOUS},
    "dmix": {"train": {"optimizer": "adam", "double_q": False}},
}


class AsOnAGpu(TorchDispatchMode):
    """Refuses what a GPU refuses, and what makes the host wait for it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [x for x in args if isinstance(x, Tensor)]
        if name in PRODUCTS and len({x.dtype for x in tensors}) > 1:
            raise RuntimeError(f"{name} of {[x.dtype for x in tensors]}")
        if name == "_thnn_fused_gru_cell" and any(x.dtype.itemsize < 4 for x in tensors):
            raise RuntimeError("a recurrent layer in half precision, whose small gradients would be zero")
        to_host = str(kwargs.get("device", "")) == "cpu" and not kwargs.get("non_blocking")
        if name == "_to_copy" and to_host and args[0].device.type == "cuda":
            raise RuntimeError("a copy to the host, for which it waits")
        return func(*args, **kwargs)


class Event:
    """A moment on a GPU that has none: each record is a millisecond after the one before."""

    clock_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timed, self._at_ms = enable_timing, 0.0

    def record(self) -> None:
        Event.clock_ms += 1.0
        self._at_ms = Event.clock_ms

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: "Event") -> float:
        assert self._is_timed
        assert end._is_timed
        return end._at_ms - self._at_ms


def stand_in() -> None:
    """Put into this process what a build without CUDA, or a machine without a GPU, lacks."""
    if not torch.cuda.is_available():
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        guards = (ctypes.c_void_p * N_DEVICE_TYPES).in_dll(library, GUARDS)
        guards[CUDA] = guards[META]
        torch.backends.cudnn.enabled = False  # it asks the driver
    kernels = torch.library.Library("aten", "IMPL", "Meta")
    kernels.impl("_thnn_fused_gru_cell", _gru_cell)
    globals()["_kept"] = kernels  # they leave with it
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    nn.Module.to = _move
    Tensor.backward = _backward
    Tensor.pin_memory = lambda self: self
    torch.cuda.Event = Event


def _gru_cell(from_input, from_hidden, hidden, bias_input=None, bias_hidden=None):
    return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], 5 * hidden.shape[1])


def _move(self: nn.Module, device: torch.device) -> nn.Module:
    for module in self.modules():
        for name, old in module._parameters.items():
            if old is not None:
                module._parameters[name] = nn.Parameter(old.detach().to(device), requires_grad=old.requires_grad)
        module._buffers.update({name: old.to(device) for name, old in module._buffers.items()})
        if isinstance(module, nn.RNNBase):
            module._init_flat_weights()
    return self


def _backward(self: Tensor) -> None:
    seen, ahead = set(), [self.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            node.variable.grad = torch.zeros_like(node.variable)
        ahead += [following for following, _ in node.next_functions]


def update(config: RunConfig, *, resumed: bool = False, home: str | None = None) -> None:
    """Make one update on the GPU.

    Args:
        config: The algorithm.
        resumed: Go on from the state that a learner left on the CPU.
        home: Where the replay buffer lives, if not on the GPU.
    """
    episodes = hard_episodes(BLOCKS)
    saved = make_learner(config, BLOCKS, device="cpu", seed=2).get_state() if resumed else None
    learner = make_learner(config, BLOCKS, device=GPU, seed=1)
    if saved is not None:
        learner.set_state(saved)
    if isinstance(learner, MappoLearner):
        stats = learner.update_rollout(episodes, env_step=0)
    else:
        memory = make_memory(episodes)
        buffer = ReplayBuffer(len(episodes), BLOCKS, device=GPU, home=home, priority_alpha=0.6)
        for i, episode in enumerate(episodes):
            buffer.add(episode, beta=np.array(memory.beta[i]))
        batch = buffer.sample(len(episodes), np.random.default_rng(0))
        shape = batch.ends.shape
        recalled = incentive_inputs(np.zeros(shape), np.zeros(shape), np.ones(shape, np.bool_), device=GPU)
        stats = learner.update(batch, recalled if config.uses_memory else None, env_step=0)
        buffer.set_priorities(batch.indices, stats.episode_error)
        buffer.sample(len(episodes), np.random.default_rng(0))
    assert {x.device for x in stats.values()} == {GPU}, stats
    assert stats["train/loss"].dtype is torch.float32, stats["train/loss"].dtype


def refit() -> None:
    """Take one step of Algorithm 1 on the GPU."""
    embedder = Embedder(EmbedConfig(), state_dim=5, episode_limit=9, device=GPU, seed=1)
    state_BS, time_B1 = embedder.to_inputs(np.zeros((64, 5), np.float32), np.zeros(64, np.int32))
    terms_5 = compute_losses(embedder, state_BS, time_B1, torch.zeros(64, device=GPU), generator=torch.Generator())
    terms_5[0].backward()
    embedder.optimizer.step()
    assert terms_5.device == GPU


def check_precision(wanted: Literal["highest", "high"]) -> None:
    """Make a learner on the GPU; every kind of float32 product must have the precision that the run asks for."""
    backends = torch.backends
    kinds = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    for kind in kinds:
        kind.fp32_precision = "tf32" if wanted == "highest" else "ieee"
    make_learner(make_config("qplex", train={"matmul_precision": wanted}), BLOCKS, device=GPU, seed=1)
    assert {kind.fp32_precision for kind in kinds} == {"ieee" if wanted == "highest" else "tf32"}


def check_determinism() -> None:
    """Make learners on the GPU; each must leave the process as deterministic as its run asks."""
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    for wanted in (False, True, False):
        torch.backends.cudnn.benchmark = True
        make_learner(make_config("qplex", train={"deterministic": wanted}), BLOCKS, device=GPU, seed=1)
        found = (torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic)
        assert found == (wanted, wanted)
        assert torch.backends.cudnn.benchmark is False
        assert not wanted or os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":16:8", ":4096:8")


def list_cases() -> dict[str, Callable[[], None]]:
    """List every update by its name, as something to call."""
    cases: dict[str, Callable[[], None]] = {"refit": refit, "determinism": check_determinism}
    for precision in ("highest", "high"):
        cases[f"{precision} precision"] = partial(check_precision, precision)
    for algo in list_algos():
        for mixed in (False, True):
            sections = dict(SECTIONS.get(algo, {}))
            sections["train"] = {**sections.get("train", {}), "mixed_precision": mixed}
            config = make_config(algo, **sections)
            cases[f"{algo}, mixed" if mixed else algo] = partial(update, config)
            if algo in RESUMED and not mixed:
                cases[f"{algo}, resumed"] = partial(update, config, resumed=True)
    cases["replay in host memory"] = partial(update, make_config("emtc-qplex"), home="cpu")
    return cases


def list_faults() -> dict[str, Callable[[], object]]:
    """List what must be refused, so that a silence above says something."""
    here = torch.zeros
    return {
        "reading a value": lambda: here(3, device=GPU).sum().item(),
        "choosing by a value": lambda: here(3, device=GPU).nonzero(),
        "copying to the host": lambda: here(3, device=GPU).cpu(),
        "mixing devices": lambda: here(3, device=GPU) + here(3),
        "mixing types": lambda: here(2, 3, device=GPU) @ here(3, 2, device=GPU, dtype=torch.bfloat16),
    }


def _try(case: Callable[[], object]) -> str:
    try:
        with ExitStack() as modes:
            modes.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            modes.enter_context(AsOnAGpu())
            case()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def main() -> None:
    warnings.simplefilter("ignore")
    stand_in()
    json.dump({name: _try(case) for name, case in (list_cases() | list_faults()).items()}, sys.stdout)


if __name__ == "__main__":
    main()
