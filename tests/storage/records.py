"""Made-up records that obey the equations, so that the invariants may be checked on them."""

from typing import Any

import numpy as np

from emtc_core.recorder import (
    EpisodeRecord,
    EvaluationRecord,
    GateStatsRecord,
    PlaybackRecord,
    Recorder,
    RobustRecord,
    SnapshotRecord,
)
from storage.engine import Database
from storage.recording.writer import DatabaseRecorder

GAMMA = 0.99
STATE_DIM, N_AGENTS = 6, 3
CONFIG: dict[str, Any] = {
    "env": {"name": "skirmish", "map": "3m"},
    "algo": "emtc-qplex",
    "seed": 7,
    "train": {"gamma": GAMMA, "t_max": 1000},
    "gate": {"delta_scale": 1.0, "tau_start": 1.0, "tau_end": 1.0, "tau_decay_steps": None},
}

ME: dict[str, Any] = {"device": "cpu"}
"""Arguments of `start_run` with which this process is the trainer."""


def make_episode(
    episode: int, first_env_step: int, length: int = 10, *, gated: bool = True, state_dim: int = STATE_DIM
) -> EpisodeRecord:
    rng = np.random.default_rng(episode)
    state = rng.random((length + 1, state_dim), np.float32)
    action = rng.integers(0, 9, (length, N_AGENTS))
    reward = rng.random(length, np.float32)
    outcome = (float(reward.sum()), bool(episode % 2), 0.5, state, action, reward)
    if not gated:
        return EpisodeRecord(episode, first_env_step, *outcome)
    h, h_next = rng.random(length), rng.random(length)
    h_next[-1] = 0.0
    slots = np.arange((episode - 1) * 100, (episode - 1) * 100 + length + 1)
    if length > 3:
        h[3] = np.nan  # a miss
        slots[3] = -1
    delta_mem = np.abs(reward + GAMMA * h_next - h)
    beta = np.where(np.isnan(delta_mem), 0.0, np.exp(-(delta_mem**2) / 2))
    return EpisodeRecord(episode, first_env_step, *outcome, slots, h, h_next, delta_mem, beta, 1.0)


def record_episodes(recorder: Recorder, count: int, *, length: int = 10, start: int = 1, **options: Any) -> None:
    """Record episodes `start`… of equal length."""
    for episode in range(start, start + count):
        recorder.record_episode(make_episode(episode, (episode - 1) * length + 1, length, **options))


def make_evaluation(env_step: int, *, wins: int = 3, episodes: int = 4, robust_wins: int = 1) -> EvaluationRecord:
    won = np.arange(episodes) < wins
    kept = make_episode(99, 1)
    playback = PlaybackRecord(kept.state, kept.action, kept.reward, kept.episode_return, won=True)
    lengths = np.full(episodes, 12)
    outcome = (env_step, np.arange(episodes, dtype=np.float32), lengths, won, (playback,))
    robust = RobustRecord(np.arange(episodes) < robust_wins, episodes)
    return EvaluationRecord(*outcome, distinct=episodes - 1, robust=robust)


def make_gate_stats(env_step: int) -> GateStatsRecord:
    delta_mem, beta = (0.1, 0.2, 0.3, 0.4, 0.5), (0.5, 0.6, 0.7, 0.8, 0.9)
    return GateStatsRecord(env_step, 0.25, delta_mem, 0.75, beta, 1.0, 42, 0.5)


def make_snapshot(env_step: int, episodes: int, *, length: int = 10) -> SnapshotRecord:
    """The nodes that `make_episode` claims to have written, in shuffled order."""
    rows = [(slot, e, t) for e in range(1, episodes + 1) for t, slot in enumerate(_slots(e, length)) if slot >= 0]
    slot, episode, t = np.random.default_rng(0).permutation(np.array(rows)).T
    n = len(slot)
    ramp = np.linspace(0, 1, n, dtype=np.float32)
    embedding = np.stack([slot, episode, t, ramp], axis=1).astype(np.float32)
    return SnapshotRecord(
        env_step=env_step,
        slot=slot,
        embedding=embedding,
        h=slot.astype(np.float32) / 100,
        xi=slot % 2 == 0,
        n_call=(slot + 1).astype(np.int32),
        n_xi=(slot % 3).astype(np.int32),
        t=t.astype(np.int32),
        reward=ramp,
        idx_next=np.where(t == length, -1, slot + 1),
        episode=episode,
        delta_mem=np.where(t == length, np.nan, ramp).astype(np.float32),
        beta=ramp,
        state_rows=np.array([2, 0]),
        state=np.stack([slot[[2, 0]]] * STATE_DIM, axis=1).astype(np.float16),
    )


def _slots(episode: int, length: int) -> list[int]:
    slots = make_episode(episode, 1, length).slots
    assert slots is not None
    return slots.tolist()


def record_everything(db: Database, run_id: str, *, episodes: int = 3) -> None:
    """Record a few rows of every table that belongs to a run."""
    recorder = DatabaseRecorder(db, run_id)
    record_episodes(recorder, episodes)
    last = episodes * 10
    recorder.record_metrics(last, {"train/loss": 0.5})
    recorder.record_evaluation(make_evaluation(last))
    recorder.record_gate_stats(make_gate_stats(last))
    recorder.record_snapshot(make_snapshot(last, episodes))
    recorder.close()
