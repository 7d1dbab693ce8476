"""Checks of the learners: the recurrent layer, updates of every algorithm, repeatability, synchronization."""

import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from emtc_core.devices import set_matmul_precision
from emtc_core.learner.learner import Learner
from emtc_core.learner.mappo import MappoLearner
from emtc_core.learner.networks import SharedAgent
from emtc_core.repeated_step import WARM_UP
from emtc_core.replay_buffer.buffer import ReplayBuffer
from emtc_core.training.episodic import make_episodic_system
from tests.gpu.cases import (
    Case,
    count_differences,
    fill_buffer,
    gradients,
    greedy_actions,
    list_builtin_algos,
    make_case,
    make_updates,
    relative_difference,
    start_learner,
    trained_weights,
)
from tests.gpu.report import CheckResult, Measurement
from tests.gpu.target import CPU, CheckSizes, Target

ROWS, INPUTS, HIDDEN = 32, 62, 64
"""Rows, inputs and hidden units of the recurrent layer that is compared with float64."""
FORWARD_LIMIT, BACKWARD_LIMIT = 1e-5, 1e-4
LOSS_LIMIT, GRADIENT_LIMIT, PARAMETER_LIMIT, ACTION_LIMIT = 1e-5, 1e-4, 1e-3, 1e-3
PREDICTOR_LIMIT = 0.1
"""Limit for the predictors of intrinsic rewards. Adam divides by the size of the gradient, so a gradient that consists
of rounding errors moves a weight as far as any other. On one CPU, the predictors of CDS differ by 0.016 between two
instruction sets of PyTorch, the networks by 1e-6."""
BATCHES = 5
"""Number of batches whose first updates are compared. The median is used, because a ReLU unit whose input is within
rounding of zero can be active on one device only, which changes the gradient of that batch by more than rounding."""
REPEATED = ("emtc-qplex", "emu-cds", "emc", "dmix", "mappo")
"""One algorithm for each kind of learner and intrinsic reward."""
_ROOT = Path(__file__).resolve().parents[2]
_OPTIMIZERS = Path(torch.optim.__file__).parent


def check_precision(target: Target, sizes: CheckSizes) -> CheckResult:
    """Compare the recurrent layer of the agents in float32 on the device with the same layer in float64 on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        agent = SharedAgent(INPUTS, 11, HIDDEN)
        inputs = torch.randn(sizes.length, ROWS, 1, INPUTS)
    with torch.no_grad():  # keeps the inputs of the ReLU away from zero, where rounding would change its output
        agent.fc1.weight.mul_(0.2)
        agent.fc1.bias.fill_(1.0)
    exact = SharedAgent(INPUTS, 11, HIDDEN).double()
    exact.load_state_dict(agent.state_dict())
    reference = _unroll(exact, inputs.double())
    agent.to(target.device)
    actual = _unroll_in(target, agent, inputs, "highest")
    forward, backward = (relative_difference(a, b) for a, b in zip(actual, reference, strict=True))
    measurements = [
        Measurement("outputs", forward, FORWARD_LIMIT),
        Measurement("gradients", backward, BACKWARD_LIMIT),
    ]
    if target.is_gpu:
        in_tf32 = _unroll_in(target, agent, inputs, "high")[0]
        measurements.append(Measurement("outputs in TF32", relative_difference(in_tf32, reference[0])))
        set_matmul_precision("highest")
    return CheckResult("precision", tuple(measurements), f"GRU of {sizes.length} steps in float32 against float64")


def _unroll_in(target: Target, agent: SharedAgent, inputs: Tensor, precision: Any) -> tuple[dict[str, Tensor], ...]:
    if target.is_gpu:
        set_matmul_precision(precision)
    with target.computing():
        return _unroll(agent, inputs.to(target.device))


def _unroll(agent: SharedAgent, inputs: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return outputs and gradients by name."""
    agent.zero_grad()
    values = agent.values(agent.unroll(inputs))
    values.square().mean().backward()
    return {"values": values.detach()}, {name: p.grad for name, p in agent.named_parameters() if p.grad is not None}


def check_update(target: Target, sizes: CheckSizes) -> CheckResult:
    """Update every algorithm on the CPU and on the device with equal weights and batches, and compare the results."""
    names = ("loss", "gradient", "parameters", "predictors", "greedy actions")
    worst: dict[str, tuple[float, str]] = dict.fromkeys(names, (0.0, ""))
    algos = sizes.algos or tuple(list_builtin_algos())
    for algo in algos:
        for name, value in _compare_updates(make_case(algo, batch=sizes.batch, length=sizes.length), target, sizes):
            if value > worst[name][0] or np.isnan(value):
                worst[name] = (np.inf if np.isnan(value) else value, algo)
    limits = (LOSS_LIMIT, GRADIENT_LIMIT, PARAMETER_LIMIT, PREDICTOR_LIMIT, ACTION_LIMIT)
    measurements = [Measurement(name, worst[name][0], limit) for name, limit in zip(worst, limits, strict=True)]
    failed = [f"{m.name} in {worst[m.name][1]}" for m in measurements if not m.is_within_limit]
    note = f"largest relative differences of {len(algos)} algorithms, the last three after {sizes.updates} updates"
    return CheckResult("update", tuple(measurements), "; ".join(filter(None, (note, ", ".join(failed)))))


def _compare_updates(case: Case, target: Target, sizes: CheckSizes) -> list[tuple[str, float]]:
    reference = start_learner(case, CPU)
    start = reference.get_state()
    learner = start_learner(case, target.device, start)
    reference_buffer, buffer = fill_buffer(case, CPU), fill_buffer(case, target.device)
    losses, differences = [], []
    for number in range(BATCHES):
        reference.set_state(start)
        learner.set_state(start)
        expected = make_updates(reference, case, reference_buffer, count=1, first=number)[0].read()["train/loss"]
        with target.computing():
            loss = make_updates(learner, case, buffer, count=1, first=number)[0].read()["train/loss"]
        losses.append(abs(loss - expected) / max(abs(expected), 1e-30))
        differences.append(relative_difference(gradients(learner), gradients(reference)))
    make_updates(reference, case, reference_buffer, count=sizes.updates - 1)
    reference_actions = greedy_actions(reference, case.info, steps=sizes.acting_steps)
    with target.computing():
        make_updates(learner, case, buffer, count=sizes.updates - 1)
        actions = greedy_actions(learner, case.info, steps=sizes.acting_steps)
    networks, predictors = (
        [{name: x for name, x in trained_weights(side).items() if (name.startswith("intrinsic.") == is_predictor)}
         for side in (learner, reference)]
        for is_predictor in (False, True)
    )  # fmt: skip
    return [
        ("loss", float(np.median(losses))),
        ("gradient", float(np.median(differences))),
        ("parameters", relative_difference(*networks)),
        ("predictors", relative_difference(*predictors)),
        ("greedy actions", float((actions != reference_actions).mean())),
    ]


def check_repeat(target: Target, sizes: CheckSizes) -> CheckResult:
    """Make the same updates twice on the device and compare all bits of the learner.

    Equal bits are guaranteed on a CPU, and on a GPU with `train.deterministic`.
    """
    algos = sizes.algos or REPEATED
    unequal = _find_unequal(algos, target, sizes, deterministic=True)
    measurements = [Measurement("algorithms with other bits", len(unequal), 0)]
    note = f"{sizes.updates} updates of {', '.join(algos)}, twice"
    if target.is_gpu:
        unequal_without = _find_unequal(algos, target, sizes, deterministic=False)
        measurements.append(Measurement("without train.deterministic", len(unequal_without)))
        note += " under train.deterministic"
    return CheckResult("repeat", tuple(measurements), "; ".join([note, *unequal]))


def _find_unequal(algos: tuple[str, ...], target: Target, sizes: CheckSizes, *, deterministic: bool) -> list[str]:
    unequal = []
    for algo in algos:
        settings = {"train.deterministic": deterministic}
        case = make_case(algo, batch=sizes.batch, length=sizes.length, overrides=settings)
        buffer, states = fill_buffer(case, target.device), []
        for _ in range(2):
            learner = start_learner(case, target.device)
            with target.computing():
                make_updates(learner, case, buffer, count=sizes.updates)
            states.append(learner.get_state())
        if count_differences(*states):
            unequal.append(algo)
    return unequal


def check_synchronization(target: Target, sizes: CheckSizes) -> CheckResult:
    """Check that the host does not wait for the device in a sample, recall and update of every algorithm.

    On a GPU, PyTorch's sync debug mode finds each wait. On a CPU, the reads of single values (`Tensor.item`) are
    counted, because each of them would wait on a GPU.
    """
    algos = sizes.algos or tuple(list_builtin_algos())
    waits: list[str] = []
    for algo in algos:
        case = make_case(algo, batch=sizes.batch, length=sizes.length)
        learner = start_learner(case, target.device)
        update = _prepare_update(learner, case, target)
        for _ in range(WARM_UP + 1 if target.is_gpu else 1):  # the first calls allocate tensors and record graphs
            update()
        waits += [f"{algo}: {reason}" for reason in _find_waits(update, target)]
    note = (
        f"sample, recall and update of {len(algos)} algorithms under torch.cuda.set_sync_debug_mode"
        if target.is_gpu
        else f"a CPU never waits; reads of single values in sample, recall and update of {len(algos)} algorithms"
    )
    return CheckResult(
        "synchronization", (Measurement("waits", len(waits), 0),), "; ".join([note, *dict.fromkeys(waits)][:6])
    )


def _prepare_update(learner: Learner, case: Case, target: Target) -> Callable[[], object]:
    if isinstance(learner, MappoLearner):
        return lambda: learner.update_rollout(case.episodes, env_step=0)
    alpha = case.config.cds.per_alpha if case.config.cds.replay == "episode_per" else None
    buffer = ReplayBuffer(len(case.episodes), case.info, device=target.device, priority_alpha=alpha)
    memory = make_episodic_system(case.config, case.info, device=target.device)
    for number, episode in enumerate(case.episodes, start=1):
        written = memory.write_and_gate(episode, number=number, tau=1.0)
        beta = None if written.gate is None else written.gate.beta
        slots, uids, generation = written.incentive_slots, written.uids, written.generation
        buffer.add(episode, slots=slots, uids=uids, generation=generation, beta=beta, number=number)

    def update() -> None:
        sampled = buffer.sample(case.config.train.batch, np.random.default_rng(0))
        batch, recalled = memory.recall(sampled, buffer, tau=1.0)
        stats = learner.update(batch, recalled, env_step=0)
        if stats.episode_error is not None and alpha is not None:
            buffer.set_priorities(batch.indices, stats.episode_error)

    return update


def _find_waits(act: Callable[[], object], target: Target) -> list[str]:
    if target.is_gpu:
        try:
            with _raise_on_wait(), target.computing():
                act()
        except RuntimeError as exc:
            return [f"{_find_raise_location(exc)}: {str(exc).partition(chr(10))[0]}"]
        return []
    with ValueReads() as reads, target.computing():
        act()
    return reads.locations


@contextmanager
def _raise_on_wait() -> Generator[None]:
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class ValueReads(TorchDispatchMode):
    """Records the code lines that read single values in the block: `Tensor.item`, `float(tensor)`, `if tensor`."""

    def __init__(self) -> None:
        super().__init__()
        self.locations: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "_local_scalar_dense" and (location := _find_read_location()):
            self.locations.append(location)
        return func(*args, **(kwargs or {}))


def _find_raise_location(exc: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if _is_in_core(frame.filename)]
    return _format_location(frames[-1].filename, frames[-1].lineno or 0) if frames else type(exc).__name__


def _find_read_location() -> str:
    """Return the line of `emtc_core` that reads a value; empty for the CPU counters of torch's optimizers."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not _is_in_core(frame.f_code.co_filename):
        if Path(frame.f_code.co_filename).is_relative_to(_OPTIMIZERS):
            return ""
        frame = frame.f_back
    return _format_location(frame.f_code.co_filename, frame.f_lineno)


def _is_in_core(filename: str) -> bool:
    return Path(filename).is_relative_to(_ROOT / "emtc_core")


def _format_location(filename: str, line: int) -> str:
    path = Path(filename)
    return f"{path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path.name}:{line}"
