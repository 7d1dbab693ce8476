"""Databases for the page tests: real episodes of the simulator by a random team, judged by a made-up memory.

Everything passes through storage's own recorder and obeys the equations, so nothing here is a fake schema.
"""

from typing import Literal

import numpy as np

from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig
from emtc_core.envs.registry import make_env
from emtc_core.recorder import (
    EpisodeRecord,
    EvaluationRecord,
    GateStatsRecord,
    PlaybackRecord,
    SnapshotRecord,
)
from emtc_core.rollout.collector import Collector
from storage.engine import Database
from storage.recording.writer import DatabaseRecorder
from storage.runs.changes import create_run, finish_run, start_run

N_EPISODES = 8
TAU = 1.0
Gate = Literal["active", "idle", "none", "old"]
_EFFECT = {"active": (0.2, 0.1, 0.3), "idle": (0.0, 0.0, 0.0)}  # incentive removed, closed fraction, merge rate


class RandomTeam:
    """Plays any legal action."""

    def start_episodes(self, n_envs: int) -> None:
        """Remember nothing."""

    def act(self, obs, avail, *, epsilon, rng):
        return np.argmax(rng.random(avail.shape) * avail, axis=-1)


def seed_run(
    db: Database,
    *,
    status: str = "finished",
    name: str = "Seeded run",
    error: str | None = None,
    gate: Gate = "active",
) -> str:
    """Record one small run that ended with `status` ("running" leaves it alive in this process).

    A run of an "old" version has a gate and never measured what it does; "none" is a backbone alone.
    """
    tau = (f"gate.tau_start={TAU}", f"gate.tau_end={TAU}")
    config = resolve(preset="demo", steps=2000, algo="qplex" if gate == "none" else "emtc-qplex", overrides=tau)
    run_id = create_run(db, config.model_dump(mode="json"), name=name, target_steps=2000, versions={"emtc_lab": "test"})
    start_run(db, run_id, device="cpu")
    recorder = DatabaseRecorder(db, run_id)
    _record(recorder, config, gate)
    recorder.close()
    if status != "running":
        finish_run(db, run_id, status, error=error)
    return run_id


def seed_zoo_run(db: Database, map: str = "tests.core.zoo_example:make_with_state") -> str:
    """Record a run of somebody's own PettingZoo environment, whose states nobody but its module can draw."""
    config = resolve(env="pettingzoo", map=map, steps=200)
    run_id = create_run(db, config.model_dump(mode="json"), name="A zoo", target_steps=200, versions={})
    start_run(db, run_id, device="cpu")
    recorder = DatabaseRecorder(db, run_id)
    _record(recorder, config, "active")
    recorder.close()
    finish_run(db, run_id, "finished")
    return run_id


def seed_failed_run(db: Database) -> str:
    """Record a run that failed before its first episode."""
    config = resolve(preset="demo")
    run_id = create_run(db, config.model_dump(mode="json"), name="Failed <b>run</b>", target_steps=40_000, versions={})
    finish_run(db, run_id, "failed", error="The environment could not be started: *no* such <map>.")
    return run_id


def _record(recorder: DatabaseRecorder, config: RunConfig, gate: Gate) -> None:
    env = make_env(config.env, n_envs=N_EPISODES)
    episodes = Collector(env, reward_scale=1.0, seed=1, stream="rollout").collect(RandomTeam(), epsilon=1.0, round=(0,))
    rng = np.random.default_rng(0)
    first, records = 1, []
    for number, episode in enumerate(episodes, 1):
        records.append(_judge(episode, number, first, rng, config.train.gamma))
        first += episode.length
    for record in records:
        recorder.record_episode(record)
        recorder.record_metrics(
            record.first_env_step,
            {
                "train/loss": 0.1 / record.episode,
                "train/q_taken": 0.2,
                "gate/beta_drift": 0.03,
                "time/env_steps_per_second": 900.0,
                **_gate_metrics(record, gate),
            },
        )
        recorder.record_gate_stats(_gate_stats(record))
    last = first - 1
    recorder.record_evaluation(_evaluation(last // 2, records))
    recorder.record_evaluation(_evaluation(last, records))
    recorder.record_metrics(last, {"eval/overestimation": 0.5})
    recorder.record_snapshot(_snapshot(last // 2, records[: N_EPISODES // 2], rng))
    recorder.record_snapshot(_snapshot(last, records, rng))


def _judge(episode, number: int, first: int, rng, gamma: float) -> EpisodeRecord:
    length = episode.length
    reward = np.asarray(episode.reward[:length], np.float32)
    value = np.zeros(length + 1)
    for t in reversed(range(length)):
        value[t] = reward[t] + gamma * value[t + 1]
    value[:length] += rng.gamma(1.0, 0.2, length)
    h, h_next = value[:length], value[1:].copy()
    h_next[-1] = 0.0
    delta_mem = np.abs(reward.astype(np.float64) + gamma * h_next - h)
    beta = np.exp(-(delta_mem**2) / (2 * TAU**2))
    return EpisodeRecord(
        episode=number,
        first_env_step=first,
        episode_return=float(reward.sum()),
        won=bool(number % 2),
        epsilon=0.5,
        state=np.asarray(episode.state[: length + 1], np.float32),
        action=np.asarray(episode.action[:length], np.int64),
        reward=reward,
        slots=np.arange(first + number - 2, first + number - 1 + length, dtype=np.int64),
        h=h,
        h_next=h_next,
        delta_mem=delta_mem,
        beta=beta,
        tau=TAU,
    )


def _gate_metrics(record: EpisodeRecord, gate: Gate) -> dict[str, float]:
    if gate not in _EFFECT:
        return {}
    removed, closed, merged = _EFFECT[gate]
    values = {
        "gate/incentive_removed": removed,
        "gate/closed_fraction": closed,
        "gate/tau": TAU,
        "memory/merge_rate": merged,
        "memory/hit_rate": 1.0,
        "incentive/rho": 0.5,
        "embedder/info_nce_accuracy": 0.1,
    }
    for name, judged in (("delta_mem", record.delta_mem), ("beta", record.beta)):
        values[f"gate/{name}_new"] = float(judged.mean())
        values |= {f"gate/{name}_new_p{q}": float(np.quantile(judged, q / 100)) for q in (10, 50, 90)}
    values["gate/delta_mem_positive_fraction"] = float(np.mean(record.delta_mem > 0))
    for q in (10, 50, 90):
        values[f"gate/delta_mem_positive_p{q}"] = float(np.quantile(record.delta_mem[record.delta_mem > 0], q / 100))
    return values


def _gate_stats(record: EpisodeRecord) -> GateStatsRecord:
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95)
    return GateStatsRecord(
        env_step=record.first_env_step + record.length - 1,
        delta_mem_mean=float(record.delta_mem.mean()),
        delta_mem_quantiles=tuple(np.quantile(record.delta_mem, quantiles)),
        beta_mean=float(record.beta.mean()),
        beta_quantiles=tuple(np.quantile(record.beta, quantiles)),
        tau=TAU,
        memory_size=int(record.slots[-1]) + 1,
        desirable_fraction=0.5,
    )


def _evaluation(env_step: int, records: list[EpisodeRecord]) -> EvaluationRecord:
    chosen = records[:4]
    return EvaluationRecord(
        env_step=env_step,
        returns=np.array([r.episode_return for r in chosen], np.float32),
        lengths=np.array([r.length for r in chosen]),
        won=np.array([r.won for r in chosen]),
        playbacks=tuple(PlaybackRecord(r.state, r.action, r.reward, r.episode_return, r.won) for r in chosen[:2]),
    )


def _snapshot(env_step: int, records: list[EpisodeRecord], rng) -> SnapshotRecord:
    parts = []
    for r in records:
        n = r.length + 1
        last = np.arange(n) == r.length
        parts.append(
            {
                "slot": r.slots,
                "h": np.append(r.h, 0.0).astype(np.float32),
                "xi": np.full(n, r.won),
                "t": np.arange(n, dtype=np.int32),
                "reward": np.append(r.reward, 0).astype(np.float32),
                "idx_next": np.where(last, -1, r.slots + 1),
                "episode": np.full(n, r.episode),
                "delta_mem": np.append(r.delta_mem, np.nan).astype(np.float32),
                "beta": np.append(r.beta, np.nan).astype(np.float32),
            }
        )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    n = len(columns["slot"])
    return SnapshotRecord(
        env_step=env_step,
        embedding=rng.normal(size=(n, 4)).astype(np.float32),
        n_call=np.full(n, 2, np.int32),
        n_xi=columns["xi"].astype(np.int32),
        **columns,
    )
