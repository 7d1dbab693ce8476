"""Made-up episodes that published code and ours are both given, and how they are laid out in a fixture's file."""

from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]

N, A, O, S, BLOCK, T_LIM = 3, 5, 4, 11, 2, 7
FULL, PADDED = (7, 7, 7, 7), (7, 2, 1, 5)


class Episode(NamedTuple):
    """One made-up episode of L transitions; `won` is read by EMU's memory alone."""

    obs: np.ndarray  # [L+1, N, O]
    state: np.ndarray  # [L+1, S]
    avail: np.ndarray  # [L+1, N, A]
    action: np.ndarray  # [L, N]
    reward: np.ndarray  # [L]
    terminated: bool
    won: bool = False


def halves(x: np.ndarray) -> np.ndarray:
    """Round to what float16 can hold."""
    return x.astype(np.float16).astype(np.float64)


def make_episode(rng: np.random.Generator, length: int, *, terminated: bool = True, size: float = 1.0) -> Episode:
    """Play at random; action 1 is always available."""
    avail = rng.random((length + 1, N, A)) < 0.6
    avail[..., 1] = True
    return Episode(
        obs=halves(rng.normal(size=(length + 1, N, O))),
        state=halves(rng.normal(size=(length + 1, S))),
        avail=avail,
        action=np.where(avail[:-1], rng.random((length, N, A)), -1.0).argmax(-1),
        reward=halves(size * rng.normal(0.5, 1.0, length)),
        terminated=terminated,
    )


def make_batches(lengths: tuple[int, ...]) -> list[list[Episode]]:
    """Make three batches; the last has gradients that are clipped, its first episode is cut and bootstrapped."""
    rng = np.random.default_rng(7)
    sizes = (1.0, 1.0, 60.0)
    return [
        [make_episode(rng, n, terminated=size < 2.0 or i > 0, size=size) for i, n in enumerate(lengths)]
        for size in sizes
    ]


def share_states(batch: list[Episode]) -> list[Episode]:
    """Let the third episode be the beginning of the first: it ends in a state in which another goes on."""
    cut = len(batch[2].reward)
    first = batch[0]
    seen = {name: getattr(first, name)[: cut + 1] for name in ("obs", "state", "avail")}
    done = {name: getattr(first, name)[:cut] for name in ("action", "reward")}
    return [*batch[:2], batch[2]._replace(**seen, **done), *batch[3:]]


def store_batches(batches: list[list[Episode]]) -> Arrays:
    """Lay episodes out as [K, B, T (+ 1), ...], zeros where one is over, with their lengths."""
    out: Arrays = {"length": np.array([[len(e.reward) for e in batch] for batch in batches], np.int8)}
    for name, dtype in {"obs": "f2", "state": "f2", "avail": "?", "action": "i1", "reward": "f2"}.items():
        rows = [[getattr(e, name) for e in batch] for batch in batches]
        steps = T_LIM + (name in ("obs", "state", "avail"))
        out[name] = np.zeros((len(rows), len(rows[0]), steps, *rows[0][0].shape[1:]), dtype)
        for k, batch in enumerate(rows):
            for b, values in enumerate(batch):
                out[name][k, b, : len(values)] = values
    out["terminated"] = np.array([[e.terminated for e in batch] for batch in batches])
    return out


READS = ("read 5", "read 1", "read 11")
"""Tracks that stand in one node each, so that no two are equally near; the last is not yet known."""


def make_stream() -> tuple[list[Episode], list[str]]:
    """Make episodes along three tracks, exactly or nearly repeated, and what happens between them.

    A state is repeated at its own step of its track, at most 1e-4 off; all others are far away. So it does not
    matter in which scaling a distance is measured, nor that theirs finds the nearest node before scaling.
    """
    rng = np.random.default_rng(3)
    tracks = [make_episode(rng, n) for n in (7, 5, 6, 4, 7)]

    def again(track: int, *, won: bool, off: float = 0.0, steps: int = 7) -> Episode:
        e = tracks[track]
        n = min(len(e.reward), steps)
        state = e.state[: n + 1] + off * rng.uniform(-1.0, 1.0, (n + 1, S))
        reward = halves(rng.normal(size=n))
        return Episode(e.obs[: n + 1], np.float32(state), e.avail[: n + 1], e.action[:n], reward, True, won)

    episodes = [
        again(0, won=False),
        again(1, won=True),
        again(0, won=True),  # in a memory without a tree: nothing is found
        again(0, won=True, off=1e-4),
        again(1, won=False),
        again(2, won=True),
        again(0, won=False, off=1e-4),  # meets desirable nodes
        again(2, won=False, steps=4),
        again(2, won=True, off=1e-4),
        again(1, won=True, off=1e-4),
        again(0, won=False, steps=3),
        again(3, won=True),  # a full memory by now: the least recently used leave
        again(4, won=False),
    ]
    writes = [f"write {i}" for i in range(len(episodes))]
    return episodes, [*writes[:3], "tree", *writes[3:7], "tree", *writes[7:11], "settle", *READS, *writes[11:]]


def store_stream(episodes: list[Episode]) -> Arrays:
    """Lay the stream out as [K, T (+ 1), ...], zeros where an episode is over."""
    length = np.array([len(e.reward) for e in episodes], np.int8)
    state, reward = np.zeros((len(episodes), T_LIM + 1, S), np.float32), np.zeros((len(episodes), T_LIM), np.float16)
    for k, e in enumerate(episodes):
        state[k, : length[k] + 1], reward[k, : length[k]] = e.state, e.reward
    return {"length": length, "state": state, "reward": reward, "won": np.array([e.won for e in episodes])}
