"""Run published code on small made-up episodes and store what went in and what came out.

    python -m tests.reference.make_published_fixtures NAME CHECKOUT     NAME: see the table

CHECKOUT is a working copy of the repository; what is stored was made from

    qplex    github.com/wjh720/QPLEX     6c0a7bafb73e950afb74a1d55175b70e82042c8e
    pymarl   github.com/oxwhirl/pymarl   c971afdceb34635d31b778021b0ef90d7af51e86
    cds      github.com/lich14/CDS       ad8b32ea5dc19ed858902a2701a5b7721c08f48d (its SMAC tree)
    football github.com/lich14/CDS       the same commit (its football tree)
    emu      github.com/HyunghoNa/EMU    107ff7103415cc49a9972e6ebd75b20c6396529b
    emc      github.com/kikojay/EMC      ff0b6d0b3247eea8853b28ce692b0d82c9b5fdb6
    dfac     github.com/j3soon/dfac      4ab58e41ff9fd645459dd66dd1ab7c7f658527f6 (its DMIX)
    mappo    github.com/marlbenchmark/on-policy    de66d7a4b23fac2513f56f96f73b3f5cb96695ac

One name a process, since they have modules of the same names. Nothing of theirs is here or is changed: learners,
controllers, mixers and memories are imported and called in the order in which their `run.py` calls them, with their
own configuration files but for the sizes. From outside, `.cuda()` is made to do nothing, learners compute in float64
(`.float()` gives doubles), and what their training routines computed is read from the frame when they return.

It runs in this project's own environment, in which torch, scikit-learn and PyYAML are all that their code asks for.
Inputs are rounded to float16, which costs nothing here and two bytes in the file; outputs are stored as computed.
"""

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tests.reference.published_inputs import (
    FULL,
    PADDED,
    T_LIM,
    Arrays,
    Episode,
    N,
    O,
    make_batches,
    share_states,
    store_batches,
)
from tests.reference.published_mappo_run import run_mappo
from tests.reference.published_memory_run import (
    fill_emc_memory,
    fill_memory,
    run_emc_memory,
    run_memory,
    stack_recalls,
)
from tests.reference.published_run import flatten, list_weights, load_settings, make_theirs, round_weights

SOURCES = {
    "qplex": "pymarl-master/src",
    "pymarl": "src",
    "cds": "CDS_SMAC/QPLEX-master-SC2/pymarl-master/src",
    "football": "CDS_GRF",
    "emu": "EMU_release_pymarl/src",
    "emc": "pymarl/src",
    "dfac": "pymarl/src",
    "mappo": ".",
}
OUT = Path(__file__).parents[1] / "assets" / "published"


class Case(NamedTuple):
    """One learner to run."""

    name: str
    algorithm: str  # their file under config/algs
    updates: int
    lengths: tuple[int, ...] = FULL
    settings: Mapping[str, Any] = {}


COPIES = {"target_update_interval": 3}
QUANTILES = {"n_quantiles": 3, "n_target_quantiles": 4, "n_approx_quantiles": 6, "quantile_embed_dim": 5}
CASES = {
    "qplex": [
        Case("qplex", "qplex_qatten_sc2", 10, settings=COPIES),
        # Their attention regulariser is averaged over padding too, so it is off where there is padding.
        Case("qplex_padded", "qplex_qatten_sc2", 5, PADDED, COPIES | {"attend_reg_coef": 0.0}),
        Case("qplex_weighted", "qplex_qatten_sc2", 2, settings={"weighted_head": True}),
        Case("qplex_nonlinear", "qplex_qatten_sc2", 2, settings={"weighted_head": True, "nonlinear": True}),
        Case("dmaq", "qplex", 5, PADDED, COPIES | {"num_kernel": 2}),
    ],
    "pymarl": [Case("qmix", "qmix", 8, PADDED, COPIES), Case("vdn", "vdn", 5, PADDED, COPIES)],
    "cds": [
        Case(
            "cds",
            "qplex_qatten_sc2",
            8,
            settings=COPIES
            | {"epsilon_anneal_time": 50_000}
            | {"beta1": 0.5, "beta2": 0.5, "beta": 0.1, "anneal": True, "anneal_rate": 5},
        )
    ],
    "football": [
        Case("cds_football_qplex", "CDS_QPLEX", 6, settings=COPIES | {"unit_dim": O}),
        Case("cds_football_qmix", "CDS_QMIX", 6, PADDED, COPIES),
    ],
    "emu": [
        Case(
            "emu",
            "EMU_sc2",
            4,
            (7, 7, 5, 7),
            {"target_update_interval": 100, "curiosity_scale": 0.0, "attend_reg_coef": 0.0},
        ),
        Case(
            "emu_curiosity",
            "EMU_sc2",
            8,
            PADDED,
            COPIES
            | {"curiosity_scale": 0.5, "curiosity_decay": False, "attend_reg_coef": 0.0}
            | {"use_emdqn": False, "optimality_incentive": False},
        ),
    ],
    "emc": [
        Case(
            "emc",
            "EMC_sc2",
            8,
            settings=COPIES | {"curiosity_scale": 0.5, "curiosity_decay": False, "emdqn_buffer_size": 1000},
        )
    ],
    "dfac": [
        Case("dmix", "dmix", 8, PADDED, COPIES | QUANTILES),
        Case("dmix_double", "dmix", 2, settings=COPIES | QUANTILES | {"double_q": True}),
    ],
}
PREDICTORS_LEARN_AFTER = 1
"""The update after which CDS's football code trains its predictors, for once, on the batch of that update."""
T_ENV, T_ENV_STEP = 900_000, 50_000
"""Env steps of the first update and from one to the next: CDS's annealing sets in after the third."""


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


@contextmanager
def rounded_fractions() -> Iterator[list[Tensor]]:
    """Record the random numbers that DMIX draws, rounded; to act it gets equally spaced ones."""
    draw, drawn = torch.rand, []

    def rand(*shape: int) -> Tensor:
        if shape[-1] == QUANTILES["n_approx_quantiles"]:
            return ((torch.arange(shape[-1]) + 0.5) / shape[-1]).expand(shape)
        drawn.append(draw(shape).half().double())
        return drawn[-1]

    torch.rand = rand  # type: ignore[assignment]
    try:
        yield drawn
    finally:
        torch.rand = draw


def modules_of(learner: Any) -> dict[str, torch.nn.Module]:
    """Name the networks that a learner trains or copies."""
    found = {"agent": learner.mac.agent, "mixer": learner.mixer}
    if hasattr(learner, "eval_predict_withid"):
        found |= {"q": learner.eval_predict_withid, "p": learner.eval_predict_withoutid}
    if getattr(learner.args, "curiosity_scale", 0.0):
        curious = learner.vdn_learner
        found |= {"vdn": curious.mac.agent, "predictor": curious.predict_mac.agent}
    return found


def targets_of(learner: Any) -> dict[str, torch.nn.Module]:
    """Name the copies in the same order; beside curiosity's predictor stands the soft copy that it predicts."""
    found = {"agent": learner.target_mac.agent, "mixer": learner.target_mixer}
    if hasattr(learner, "target_predict_withid"):
        found |= {"q": learner.target_predict_withid, "p": learner.target_predict_withoutid}
    if getattr(learner.args, "curiosity_scale", 0.0):
        curious = learner.vdn_learner
        found |= {"vdn": curious.target_mac.agent, "predictor": curious.soft_target_mac.agent}
    return found


def make_learner(args: SimpleNamespace, scheme: Any) -> tuple[Any, CodeType]:
    """Build their controller and learner with rounded weights, target copies equal to them."""
    from controllers import REGISTRY as CONTROLLERS
    from learners import REGISTRY as LEARNERS

    args.GPU = args.device
    torch.manual_seed(5)
    mac = CONTROLLERS[args.mac](scheme, {"agents": N}, args)
    logger = SimpleNamespace(log_stat=lambda *_: None, console_logger=SimpleNamespace(info=lambda _: None))
    Learner = LEARNERS[args.learner]
    learner = Learner(mac, scheme, logger, args)
    for module, target in zip(modules_of(learner).values(), targets_of(learner).values(), strict=True):
        round_weights(module)
        target.load_state_dict(module.state_dict())
    if "vdn" in modules_of(learner):
        learner.vdn_learner.soft_target_mac.load_state(learner.vdn_learner.mac)
    return learner, getattr(Learner, "sub_train", Learner.train).__code__


@torch.no_grad()
def play_greedily(learner: Any, episodes: list[Episode]) -> np.ndarray:
    """Let their controller act in test mode along given observations, one episode at a time: [B, T+1, N]."""
    chosen = []
    for e in episodes:
        batch = make_theirs([e], reals=torch.float64, steps=T_LIM + 1)
        learner.mac.init_hidden(1)
        for t in range(len(e.state)):
            action = learner.mac.select_actions(batch, t_ep=t, t_env=0, test_mode=True)
            batch.update({"actions": action.view(1, N, 1).numpy()}, ts=t)
        chosen.append(batch["actions"][0, :, :, 0].numpy().astype(np.int8))
    return np.stack(chosen)


FRACTIONS = ("fractions/online", "fractions/target")
READ = (
    "loss",
    "grad_norm",
    "chosen_action_qvals",
    "targets",
    "mac_out",
    "mask",
    "intrinsic_rewards",
    "local_qs",
    "eta",
    "update_prior",
)


def run_learner(name: str, source: Path, case: Case) -> Arrays:
    """Make the updates of a case; `episode` counts as their run.py counts, from 0."""
    args = load_settings(source, case.algorithm, case.settings | {"batch_size": len(case.lengths)})
    episodes = make_batches(case.lengths)
    if case.name == "emu":
        episodes = [share_states(batch) for batch in episodes]
    out = store_batches(episodes)
    with in_double(), rounded_fractions() as drawn:
        theirs = [make_theirs(batch, reals=torch.float64, steps=T_LIM + 1) for batch in episodes]
        learner, code = make_learner(args, theirs[0].scheme)
        out["names"] = list_weights(modules_of(learner))
        out["before"] = flatten(modules_of(learner)).astype(np.float16)
        memory = {}
        if name in ("emc", "emu") and args.use_emdqn:
            fill = fill_memory if name == "emu" else fill_emc_memory
            memory["ec_buffer"], recalls = fill(args, theirs)
        watch = Watch(code, READ)
        mixed: list[Tensor] = []
        if name == "dfac":
            learner.mixer.register_forward_hook(lambda module, inputs, z_tot: mixed.append(z_tot.detach()))
        sys.setprofile(watch)
        for k in range(case.updates):
            learner.train(theirs[k % len(theirs)], T_ENV + k * T_ENV_STEP, k, **memory)
            if name == "football" and k == PREDICTORS_LEARN_AFTER:
                learner.train_predict(theirs[k % len(theirs)], T_ENV)
        sys.setprofile(None)
        for name_of, modules in {"after": modules_of(learner), "copied": targets_of(learner)}.items():
            # CDS's predictors are left out, being large: the rewards that their copies give depend on all of them.
            out[name_of] = flatten({part: module for part, module in modules.items() if part not in ("q", "p")})
        if case.lengths == FULL and name not in ("emu", "football"):
            out["greedy"] = play_greedily(learner, episodes[0])
        if memory:
            out |= stack_recalls(recalls, watch.seen)
        if name == "dfac":
            out |= stack_quantiles(drawn, mixed, watch.seen)
    return out | stack_updates(watch.seen)


def stack_quantiles(drawn: list[Tensor], mixed: list[Tensor], seen: list[Arrays]) -> Arrays:
    """Lay out Z_tot [K, B, T, W] and the fractions [K, T+1, B, W] of each update; Q_i and Q_tot are means over W."""
    steps = T_LIM + 1  # each update draws for every step of the online network, then for every step of the target
    draws = [drawn[i : i + steps] for i in range(0, len(drawn), steps)][: 2 * len(seen)]
    out = {name: np.stack([torch.stack(d)[:, :, 0] for d in draws[i::2]]) for i, name in enumerate(FRACTIONS)}
    for update, z_tot in zip(seen, mixed, strict=True):
        update["chosen_action_qvals"] = z_tot.mean(-1).numpy()
        update["mac_out"] = update["mac_out"].mean(-1)
    z_tot = np.stack([update["mask"] * z[:, :, 0].numpy() for update, z in zip(seen, mixed, strict=True)])
    return {name: values.astype(np.float16) for name, values in out.items()} | {"z_tot": z_tot}


def stack_updates(seen: list[Arrays]) -> Arrays:
    """Lay what was read of each update out under short names; what is masked is 0."""
    real = [update["mask"][..., 0] for update in seen]
    out = {name: np.array([float(update[name]) for update in seen]) for name in ("loss", "grad_norm")}
    for name, theirs in {"q_tot": "chosen_action_qvals", "target": "targets"}.items():
        if theirs in seen[0]:
            out[name] = np.stack([m * update[theirs][..., 0] for m, update in zip(real, seen, strict=True)])
    out["q_first"], out["q_last"] = seen[0]["mac_out"], seen[-1]["mac_out"]
    if "local_qs" in seen[0]:
        out["private"] = seen[0]["local_qs"]
    if "intrinsic_rewards" in seen[0]:  # CDS: [K, B, N, T]; curiosity: [K, B, T]
        out["intrinsic"] = np.stack([update["intrinsic_rewards"][..., 0] for update in seen])
    if "update_prior" in seen[0]:
        out["priority"] = np.stack([update["update_prior"].ravel() for update in seen])
    if "eta" in seen[0]:
        out["eta"] = np.stack([m * update["eta"][..., 0] for m, update in zip(real, seen, strict=True)])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    source = given.checkout / SOURCES[given.name]
    sys.path.insert(0, str(source))
    warnings.simplefilter("ignore")  # that their code is older than torch and NumPy here
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.name == "mappo":
        made = {"mappo": run_mappo(given.checkout)}
    else:
        made = {case.name: run_learner(given.name, source, case) for case in CASES[given.name]}
    if given.name == "emc":
        args = load_settings(source, "EMC_sc2", {"emdqn_buffer_size": 40})
        made["emc_memory"] = run_emc_memory(args)
    if given.name == "emu":
        both = {"flag_init_desirability": True, "flag_memory_cnt_reset": True}
        options = {"emu_memory": {}, "emu_memory_counts": both}
        settings = {"atol_memory": 0.02, "emdqn_buffer_size": 29}
        made |= {k: run_memory(load_settings(source, "EMU_sc2", settings | v)) for k, v in options.items()}
    for name, arrays in made.items():
        np.savez_compressed(given.out / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
