"""The main loop on the real simulator, without a database."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from emtc_core import control as control_module
from emtc_core.config.resolve import resolve
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.control import Command, CommandHandler, NoControl, Question, QuestionKind
from emtc_core.envs.registry import make_env
from emtc_core.errors import CheckpointError, NonFiniteLossError
from emtc_core.metrics import MACHINE_PREFIXES, METRICS
from emtc_core.recorder import ListRecorder
from emtc_core.replay_buffer.buffer import Batch, ReplayBuffer
from emtc_core.schedules import linear_decay
from emtc_core.training import checkpoint as checkpoint_module
from emtc_core.training.checkpoint import CheckpointStore, load
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.trainer import Trainer
from tests.core.small_files import small_files

SHORT = ["train.burn_in=4", "train.batch=4", "eval.episodes=4", "eval.interval=600", "checkpoint.interval=400"]
ONE_OF_EACH = ("emtc-qplex", "emu-cds", "emc", "dmix", "mappo")
"""Every method and every kind of learner once; `pytest -m ci` tries all of their combinations."""
ALGOS = [name if name in ONE_OF_EACH else pytest.param(name, marks=pytest.mark.ci) for name in list_algos()]

MOMENTS: dict[str, Callable[[Trainer], bool]] = {
    "while stepping": lambda trainer: True,
    "between two episodes": lambda trainer: len(trainer._pending_episodes) == 3 and not trainer._pending_updates,
    "between two updates": lambda trainer: trainer._pending_updates == 1,
    "while evaluating": lambda trainer: 0 < trainer.env_step == trainer._intervals["evaluation"].last,
}


class StopWhen(NoControl):
    """Says stop at the n-th poll of that moment."""

    trainer: Trainer

    def __init__(self, moment: Callable[[Trainer], bool], *, polls: int = 1) -> None:
        self.moment, self.left = moment, polls

    def poll(self) -> Command | None:
        self.left -= self.moment(self.trainer)
        return None if self.left else "stop"


class Says(NoControl):
    """Gives these commands at these polls."""

    def __init__(self, commands: Mapping[int, Command | Question]) -> None:
        self.commands, self.polls, self.published = commands, 0, []

    def poll(self) -> Command | Question | None:
        self.polls += 1
        return self.commands.get(self.polls)

    def set_status(self, status: str) -> None:
        self.published.append((self.polls, status))


def make_trainer(
    config: RunConfig, folder: Path, control=None, device: str = "cpu", min_interval_s: float = 0.0, **more: Any
) -> tuple[Trainer, ListRecorder]:
    torch.set_num_threads(1)
    recorder = ListRecorder()
    trainer = Trainer(
        config,
        env=make_env(config.env, n_envs=config.train.n_envs),
        eval_env=make_env(config.env, n_envs=4),
        recorder=recorder,
        control=control or NoControl(),
        checkpoints=CheckpointStore(folder, keep=2, min_interval_s=min_interval_s),
        device=torch.device(device),
        **more,
    )
    if isinstance(control, StopWhen):
        control.trainer = trainer
    return trainer, recorder


def run_in_parts(config: RunConfig, folder: Path, stops: list[StopWhen]) -> tuple[Trainer, ListRecorder]:
    """Stop a run at each moment and resume it in a new trainer. Return the last trainer and the records of all."""
    parts = ListRecorder()
    trainer, recorder = make_trainer(config, folder)
    for control in [*stops, NoControl()]:
        trainer, recorder = make_trainer(config, folder, control)
        loaded = trainer.checkpoints.load_latest()
        if loaded is not None:
            assert loaded[0] == sum(record.length for record in parts.episodes)
            trainer.set_state(loaded[1])
        assert trainer.run().status == ("stopped" if control in stops else "finished")
        for records, added in zip(vars(parts).values(), vars(recorder).values(), strict=True):
            records += added
    return trainer, parts


def short_config(*extra: str, steps: int = 1500, algo: str = "emtc-qplex") -> RunConfig:
    wide = ["memory.delta=0.05", "embed.min_entries=64", "embed.batch=64", "embed.interval=300"]
    return resolve(map="3m", algo=algo, steps=steps, seed=3, overrides=[*SHORT, *wide, *extra])


def test_replayed_episodes_are_written_again_after_a_refit(tmp_path: Path) -> None:
    visits = {}
    for name in ("none", "one_episode", "full"):
        trainer, recorder = make_trainer(short_config(f"memory.replay_refresh={name}", steps=400), tmp_path / name)
        trainer.run()
        visits[name] = int(recorder.snapshots[-1].n_call.sum())
    assert visits["none"] < visits["one_episode"] <= visits["full"]
    assert visits["full"] >= visits["none"] + 40


def assert_same_state(a, b, path: str = "") -> None:
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same_state(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same_state(x, y, f"{path}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), path
    else:
        assert a == b or (a != a and b != b), path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory):
    trainer, recorder = make_trainer(short_config(), tmp_path_factory.mktemp("run"))
    summary = trainer.run()
    return trainer, recorder, summary


def test_episodes_are_recorded_without_gaps_and_the_last_state_is_evaluated(finished) -> None:
    _, recorder, summary = finished
    expected = 1
    for number, record in enumerate(recorder.episodes, start=1):
        assert (record.episode, record.first_env_step) == (number, expected)
        expected += record.length
    assert recorder.episodes[-1].first_env_step <= 1500 < expected
    ends = {recorder.evaluations[-1].env_step, recorder.snapshots[-1].env_step, recorder.gate_stats[-1].env_step}
    assert ends == {summary.env_steps} == {expected - 1}
    assert summary.updates > 0


def test_every_transition_has_the_gate_at_the_scheduled_tau_of_its_episode(finished) -> None:
    _, recorder, _ = finished
    for record in recorder.episodes:
        last = record.first_env_step + record.length - 1
        assert record.tau == pytest.approx(linear_decay(last, start=1.2, end=0.6, steps=750))
        error = np.abs(record.reward + 0.99 * record.h_next - record.h)
        np.testing.assert_allclose(record.delta_mem, error, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(record.beta, np.exp(-(record.delta_mem**2) / (2 * record.tau**2)), atol=1e-6)


def test_a_clicked_point_always_finds_its_trajectory(finished) -> None:
    _, recorder, _ = finished
    episodes = {record.episode: record for record in recorder.episodes}
    for snapshot in recorder.snapshots:
        for row, i in enumerate(snapshot.state_rows):
            record = episodes[int(snapshot.episode[i])]
            state = record.state[int(snapshot.t[i])]
            np.testing.assert_allclose(snapshot.state[row], state.astype(np.float16))


@pytest.mark.parametrize("algo", ALGOS)
def test_stopping_and_resuming_equals_never_having_stopped(tmp_path: Path, algo: str) -> None:
    extra = {"cds": ["cds.beta=0.1"], "emc": ["curiosity.scale=0.01"]}.get(algo.rpartition("-")[2], [])
    soon = ("eval.interval=300", "checkpoint.interval=200", "embed.interval=150", "mappo.rollout_steps=150")
    config = short_config(*soon, "train.updates_per_episode=2", *extra, steps=500, algo=algo)
    whole, recorder = make_trainer(config, tmp_path / "whole")
    assert whole.run().updates > 0
    moments = [moment for name, moment in MOMENTS.items() if algo != "mappo" or name != "between two updates"]
    parts, records = run_in_parts(config, tmp_path / "parts", [StopWhen(moment, polls=2) for moment in moments])
    assert_same_state(whole.get_state(), parts.get_state())
    assert_same_records(records, recorder)  # metrics rows as well: the open window is part of the checkpoint


def test_a_resumed_run_finds_the_same_nodes_for_evicted_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots of a search are part of the replay buffer, and a checkpoint restores them."""
    searches = []
    replace_evicted = EpisodicPart._replace_evicted

    def note(self: EpisodicPart, batch: Batch, buffer: ReplayBuffer) -> Batch:
        found = replace_evicted(self, batch, buffer)
        searches.append(int((found.uids != batch.uids).sum()))
        return found

    monkeypatch.setattr(EpisodicPart, "_replace_evicted", note)
    few = ("memory.capacity=100", "memory.delta=0.5", "embed.type=random", "memory.on_evicted=search")
    config = short_config(*few, "train.updates_per_episode=2", "checkpoint.interval=150", steps=250)
    whole, recorder = make_trainer(config, tmp_path / "whole")
    whole.run()
    unbroken, searches[:] = list(searches), []
    stops = [StopWhen(MOMENTS["between two updates"], polls=polls) for polls in (3, 2)]
    parts, records = run_in_parts(config, tmp_path / "parts", stops)
    assert_same_state(whole.get_state(), parts.get_state())
    assert_same_records(records, recorder)
    assert searches == unbroken
    assert sum(n > 0 for n in unbroken) > 3, "nodes were found in several updates"


def test_the_clock_of_a_run_leaves_out_its_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def wait(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(control_module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=wait))
    commands = {1: "pause", 50: "resume"}
    handler = CommandHandler(Says(commands), before_pause=lambda: wait(1.0), answer=lambda question: None)
    started = handler.read_clock()
    handler.handle()
    assert now[0] > 105
    assert handler.read_clock() - started == pytest.approx(1.0)


KINDS: tuple[QuestionKind, ...] = ("evaluate", "play")


class AsksAt(NoControl):
    """Asks at those moments, at each once for every kind, and stays paused there until the answer has come."""

    trainer: Trainer
    recorder: ListRecorder

    def __init__(self, moments: Mapping[str, Callable[[Trainer], bool]], *, pause: bool) -> None:
        self.left = {(name, kind): moment for name, moment in moments.items() for kind in KINDS}
        self.pause, self.paused = pause, False
        self.asked, self.says = list[QuestionKind](), list[Command | Question]()

    def poll(self) -> Command | Question | None:
        if self.says:
            return self.says.pop(0)
        if len(self.recorder.answers) < len(self.asked):
            return None
        for (name, kind), moment in self.left.items():
            if moment(self.trainer):
                del self.left[name, kind]
                self.asked.append(kind)
                question = Question(kind, len(self.asked))
                self.says = [question]
                return "pause" if self.pause else self.says.pop()
        return "resume" if self.paused else None

    def set_status(self, status: str) -> None:
        self.paused = status == "paused"


def assert_same_records(left: ListRecorder, right: ListRecorder) -> None:
    """All that a run records but how long it took."""
    for name in ("episodes", "evaluations", "gate_stats", "snapshots"):
        for a, b in zip(getattr(left, name), getattr(right, name), strict=True):
            np.testing.assert_equal(asdict(a), asdict(b))

    def timeless(recorder: ListRecorder) -> list[tuple[int, dict[str, float]]]:
        return [
            (step, {n: v for n, v in values.items() if not n.startswith(MACHINE_PREFIXES)})
            for step, values in recorder.metrics
        ]

    np.testing.assert_equal(timeless(left), timeless(right))


@pytest.fixture(scope="module", params=["emtc-qplex", "mappo"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A configuration, and what a run of it comes to that nobody asks anything."""
    config = short_config("mappo.rollout_steps=200", "eval.interval=200", steps=700, algo=request.param)
    whole, recorder = make_trainer(config, tmp_path_factory.mktemp("whole"))
    whole.run()
    return config, whole.get_state(), recorder


@pytest.mark.parametrize("pause", [False, True])
def test_a_question_changes_nothing(tmp_path: Path, undisturbed, pause: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emtc_core.control.PAUSE_POLL_S", 0.0)
    config, whole, unasked = undisturbed
    moments = {
        name: moment for name, moment in MOMENTS.items() if config.algo != "mappo" or name != "between two updates"
    }
    if pause:
        del moments["while evaluating"]  # its environments would answer: a paused run keeps such a question
    control = AsksAt(moments, pause=pause)
    asked, recorder = make_trainer(config, tmp_path / "asked", control)
    control.trainer, control.recorder = asked, recorder
    asked.run()
    assert len(recorder.answers) == len(control.asked) == len(KINDS) * len(moments)
    for kind, answer in zip(control.asked, recorder.answers, strict=True):
        assert len(answer.evaluation.won) == (4 if kind == "evaluate" else 1)
    assert all(answer.evaluation.playbacks for answer in recorder.answers)
    assert_same_state(whole, asked.get_state())
    assert_same_records(recorder, unasked)


def test_an_episode_is_played_again_from_its_start(tmp_path: Path) -> None:
    config = short_config("env.skirmish.spawn_jitter=0.5", "env.skirmish.random_start=surround_reflect",
                          "train.n_envs=4", steps=300)  # fmt: skip
    control = Says({50 + number: Question("play", number, repeats_episode=number) for number in range(1, 7)})
    trainer, recorder = make_trainer(config, tmp_path, control)
    trainer.run()
    assert [answer.again_of for answer in recorder.answers] == [1, 2, 3, 4, 5, 6]
    for answer in recorder.answers:
        start = answer.evaluation.playbacks[0].state[0]
        same = [record.episode for record in recorder.episodes if np.array_equal(record.state[0], start)]
        assert same == [answer.again_of]


@pytest.mark.parametrize(("asked", "repeats_starts"), [(5, True), (1, False)], ids=["another copy", "StarCraft II"])
def test_a_start_that_cannot_be_repeated_is_reported_as_another(
    tmp_path: Path, asked: int, repeats_starts: bool
) -> None:
    control = Says({20: Question("play", 1, repeats_episode=asked)})
    trainer, recorder = make_trainer(short_config("train.n_envs=8", steps=300), tmp_path, control)
    env = trainer._evaluator._env
    env.info = replace(env.info, repeats_starts=repeats_starts)  # type: ignore[misc]
    trainer.run()
    assert [answer.again_of for answer in recorder.answers] == [None]


@pytest.mark.parametrize(
    "change",
    ["gate.enabled=false", "embed.type=dcae", "embed.type=random", "gate.mode=recompute", "gate.successor=link",
     "gate.on_miss=nearest", "incentive.enabled=false", "memory.index=stale_target_update"],
)  # fmt: skip
def test_every_variant_is_trained_by_configuration(tmp_path: Path, change: str) -> None:
    trainer, recorder = make_trainer(short_config(change, steps=400), tmp_path)
    assert trainer.run().status == "finished"
    gated = change not in ("gate.enabled=false", "incentive.enabled=false")
    for record in recorder.episodes:
        assert record.h is not None
        assert [value is not None for value in (record.delta_mem, record.beta, record.tau)] == [gated] * 3


@pytest.mark.parametrize("threshold", [-1.0, 1.5])
def test_with_a_return_threshold_the_success_rate_is_logged_and_won_is_that_of_the_environment(
    tmp_path: Path, threshold: float
) -> None:
    rule = ("memory.success=return_threshold", f"memory.success_threshold={threshold}")
    trainer, recorder = make_trainer(short_config(*rule, steps=400), tmp_path)
    summary = trainer.run()
    rates = {step: values["eval/success_rate"] for step, values in recorder.metrics if "eval/success_rate" in values}
    expected = {each.env_step: float((each.returns >= threshold).mean()) for each in recorder.evaluations}
    assert rates == expected
    assert summary.success_rate == list(rates.values())[-1]
    trained = [values["rollout/success_rate"] for _, values in recorder.metrics if "rollout/success_rate" in values]
    assert trained
    assert all(0 <= rate <= 1 for rate in trained)
    if threshold == -1:
        assert set(rates.values()) | set(trained) == {1.0}
        assert summary.win_rate == float(recorder.evaluations[-1].won.mean())


def test_every_registered_metric_is_logged_by_some_run(tmp_path: Path) -> None:
    logged: set[str] = set()
    ruled = "memory.success=return_threshold"
    for algo, extra in {"emtc-cds": "cds.beta=0.1", "emc": "curiosity.scale=0.01", "mappo": ruled}.items():
        trainer, recorder = make_trainer(
            short_config("mappo.rollout_steps=100", extra, steps=400, algo=algo), tmp_path / algo
        )
        trainer.run()
        logged |= {name for _, values in recorder.metrics for name in values}
    on_gpu = {
        name for name in METRICS if name.startswith("machine/gpu_")
    }  # `tests/core/test_machine_usage.py` has those
    assert logged == set(METRICS) - ({*on_gpu} - logged)


def test_a_loss_that_is_not_finite_ends_the_run_and_its_batch_is_saved(tmp_path: Path) -> None:
    trainer, _ = make_trainer(short_config(steps=1500), tmp_path)
    sample = trainer._replay_buffer.sample

    def poisoned(batch: int, rng: np.random.Generator) -> Batch:
        drawn = sample(batch, rng)
        if trainer._updates >= 7:
            drawn.reward[0, 0] = float("inf")
        return drawn

    trainer._replay_buffer.sample = poisoned  # type: ignore[method-assign]  # the one way to a broken reward
    with pytest.raises(NonFiniteLossError, match=r"\b8\b") as caught:
        trainer.run()
    kept = next(tmp_path.glob("non-finite-update-*.npz"))
    assert str(kept) in str(caught.value)
    with np.load(kept, allow_pickle=False) as arrays:
        assert np.isinf(arrays["reward"]).sum() == 1
        assert arrays["obs"].shape[0] == 4
        assert "h_next" in arrays
    assert all(
        np.isfinite(w).all()
        for _, s in [load(p) for p in tmp_path.glob("checkpoint-*")]
        for w in s["learner"]["online"].values()
    )


@pytest.mark.parametrize("mode", ["stored", "recompute"])
def test_the_gate_of_a_batch_is_that_of_the_memory(tmp_path: Path, mode: str) -> None:
    trainer, recorder = make_trainer(short_config(f"gate.mode={mode}", steps=900), tmp_path)
    trainer.run()
    values = {name: value for _, row in recorder.metrics for name, value in row.items()}
    assert values["gate/beta_batch_p10"] <= values["gate/beta_batch_p50"] <= values["gate/beta_batch_p90"] <= 1
    assert 0 <= values["gate/delta_mem_batch_p10"] <= values["gate/delta_mem_batch_p90"]
    # A gate computed at the update is what the memory says, up to what was written between update and report.
    assert values["gate/beta_drift"] < 0.05 if mode == "recompute" else values["gate/beta_drift"] > 0


def test_the_mean_beta_of_sampled_batches_is_that_of_the_updates_since_the_last_report(tmp_path: Path) -> None:
    trainer, recorder = make_trainer(short_config("record.metrics_interval=200", steps=900), tmp_path)
    update = trainer._learner.update
    means: dict[int, list[float]] = defaultdict(list)

    def note(*arguments: Any, **options: Any) -> Any:
        stats = update(*arguments, **options)
        means[len(recorder.metrics)].append(float(stats["gate/beta_batch"]))
        return stats

    trainer._learner.update = note
    trainer.run()
    assert max(map(len, means.values())) > 1
    reported = [recorder.metrics[report][1]["gate/beta_batch"] for report in means]
    assert reported == pytest.approx([np.mean(betas) for betas in means.values()])


def test_between_the_first_checkpoint_and_the_last_one_a_minimum_time_passes(tmp_path: Path) -> None:
    trainer, _ = make_trainer(short_config(), tmp_path, min_interval_s=3600.0)
    trainer.run()
    first, last = (load(path)[0] for path in trainer.checkpoints.list())
    assert first < 800, "the second one would be due there"
    assert last == trainer.env_step


def test_on_a_full_disk_every_step_is_trained_and_no_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_module, "FULL_DISK_TIMEOUT_S", 0.0)
    config = short_config(steps=600)
    make_trainer(config, tmp_path / "warm")[0].run()  # what is compiled is cached in files, too
    trainer, recorder = make_trainer(config, tmp_path / "full")
    with small_files(2000), pytest.raises(CheckpointError, match="checkpoint"):
        trainer.run()
    assert trainer.env_step == sum(record.length for record in recorder.episodes) >= 600
    assert list((tmp_path / "full").iterdir()) == []


@pytest.mark.parametrize(("algo", "updates"), [("emtc-cds", 8), ("emc", 8), ("mappo", 1)])
def test_a_state_does_not_change_while_training_continues(tmp_path: Path, algo: str, updates: int) -> None:
    trainer, _ = make_trainer(short_config(algo=algo, steps=10_000), tmp_path)

    def go_on() -> None:
        until = trainer._updates + updates
        while trainer._updates < until:
            trainer.step()

    go_on()
    state = trainer.get_state()
    before = serialize(state)
    go_on()
    assert serialize(state) == before
    assert serialize(trainer.get_state()) != before


def serialize(state: dict[str, Any]) -> bytes:
    file = BytesIO()
    torch.save(state, file)
    return file.getvalue()
