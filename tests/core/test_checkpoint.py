"""Checkpoints: signed, checked in every bit, tried from the newest to the oldest."""

import random
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch

from emtc_core import checkpoint_file
from emtc_core.checkpoint_file import check_best, check_checkpoints, list_best, rename_newer
from emtc_core.control import StopRequested
from emtc_core.errors import CheckpointError
from emtc_core.recorder import EvaluationRecord
from emtc_core.training import checkpoint
from emtc_core.training.checkpoint import BestSoFar, CheckpointStore, load, load_part
from tests.core.small_files import small_files

PLACES = 200
ME = "abcd2345"


def make_state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weights = {f"layer{i}.weight": torch.rand(17, 5, generator=generator) for i in range(6)}
    columns = {"reward": torch.rand(300, generator=generator), "won": torch.rand(300, generator=generator) > 0.5}
    empty: dict[str, list[object]] = {"rollout": [], "pending_episodes": []}
    return {"env_step": seed, "learner": {"online": weights}, "replay_buffer": columns, **empty}


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run", keep=2, run_id=ME)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_what_is_saved_is_loaded(store: CheckpointStore) -> None:
    assert store.load_latest() is None
    store.save(400, make_state(400))
    loaded = store.load_latest()
    assert loaded is not None
    assert (loaded.env_step, loaded.skipped) == (400, ())
    assert is_same(loaded.state, make_state(400))


def test_a_flipped_bit_anywhere_is_caught_and_the_older_one_used(store: CheckpointStore) -> None:
    store.save(400, make_state(400))
    newest = store.save(800, make_state(800))
    whole = newest.read_bytes()
    rng = random.Random(11)
    for bit in rng.sample(range(8 * len(whole)), PLACES):
        flip(newest, bit)
        loaded = store.load_latest()
        assert loaded is not None
        assert loaded.env_step == 400, f"bit {bit} was not noticed"
        assert is_same(loaded.state, make_state(400))
        assert newest.name in loaded.skipped[0]
        newest.write_bytes(whole)


def test_a_damaged_checkpoint_without_an_older_one_is_an_error(store: CheckpointStore) -> None:
    path = store.save(400, make_state(400))
    data = bytearray(path.read_bytes())
    data[500:540] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=str(store.folder)):
        store.load_latest()
    assert "checksum" in (check_checkpoints(store.folder, ME)[0].fault or "")


@pytest.mark.parametrize("length", [0, 1, 20, 200, -1])
def test_a_truncated_checkpoint_is_skipped(store: CheckpointStore, length: int) -> None:
    store.save(400, make_state(400))
    newest = store.save(800, make_state(800))
    newest.write_bytes(newest.read_bytes()[:length])
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.env_step == 400


def test_another_runs_checkpoint_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "other", keep=2, run_id="zzzz9999")
    foreign = other.save(800, make_state(800))
    store.save(400, make_state(400))
    foreign.rename(store.folder / foreign.name)
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.env_step == 400
    assert "belongs to run zzzz9999" in loaded.skipped[0]
    assert "belongs to run zzzz9999" in (check_checkpoints(store.folder, ME)[0].fault or "")


def test_a_checkpoint_that_does_not_fit_the_rows_is_skipped_and_renamed(store: CheckpointStore) -> None:
    store.save(400, make_state(400))
    store.save(800, make_state(800))
    loaded = store.load_latest(lambda step: "the database ends at 700." if step > 700 else None)
    assert loaded is not None
    assert loaded.env_step == 400
    assert "ends at 700" in loaded.skipped[0]
    rename_newer(store.folder, 400)
    store.save(600, make_state(600))
    assert [each.env_step for each in check_checkpoints(store.folder, ME)] == [600, 400]


def test_nothing_in_a_checkpoint_is_executed(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save(400, {"learner": Trap(tmp_path / "sprung")})
    with pytest.raises(CheckpointError, match=path.name):
        load(path, run_id=ME)
    assert not (tmp_path / "sprung").exists()


class Trap:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


def test_a_checkpoint_that_fails_on_a_full_disk_changes_no_earlier_one(store: CheckpointStore) -> None:
    store.save(400, make_state(400))
    with small_files(2000):
        assert store.try_save(800, make_state(800)) == "File too large"
    assert sorted(path.name for path in store.folder.iterdir()) == ["checkpoint-000000000400.pt"]
    assert store.try_save(800, make_state(800)) is None
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.env_step == 800


def test_the_temporary_file_of_a_killed_writer_is_removed_by_the_next(store: CheckpointStore) -> None:
    store.folder.mkdir()
    (store.folder / "checkpoint-000000000300.partial").write_bytes(b"half")
    store.save(400, make_state(400))
    assert sorted(path.name for path in store.folder.iterdir()) == ["checkpoint-000000000400.pt"]


def test_a_stop_while_a_checkpoint_is_read_is_not_a_fault_of_the_file(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(400, make_state(400))

    def interrupted(*_: object, **__: object) -> None:
        raise StopRequested

    monkeypatch.setattr(torch, "load", interrupted)
    with pytest.raises(StopRequested):
        store.load_latest()


def evaluated(env_step: int, wins: int, episode_return: float) -> EvaluationRecord:
    won = np.arange(4) < wins
    return EvaluationRecord(env_step, np.full(4, episode_return), np.full(4, 9), won)


def test_the_best_is_of_most_wins_then_of_the_highest_return_then_the_later() -> None:
    best = BestSoFar()
    told = [(1, 0, 3.0), (2, 1, 1.0), (3, 1, 2.0), (4, 1, 1.9), (5, 0, 9.0), (6, 1, 2.0)]
    assert [best.update(evaluated(*each)) for each in told] == [True, True, True, False, False, True]
    resumed = BestSoFar()
    resumed.set_state(best.get_state())
    assert not resumed.update(evaluated(7, 1, 1.9))
    assert resumed.update(evaluated(8, 1, 2.0))


def best_steps(store: CheckpointStore) -> list[int]:
    return [int(path.stem[-12:]) for path in list_best(store.folder)]


def test_one_best_policy_is_kept_and_what_a_return_to_a_checkpoint_would_need(store: CheckpointStore) -> None:
    for step in (100, 200, 300):
        store.save_best(step, make_state(step)["learner"])
    assert best_steps(store) == [300], "no checkpoint goes back before it"
    store.save(350, make_state(350))
    for step in (400, 500):
        store.save_best(step, make_state(step)["learner"])
    assert best_steps(store) == [300, 500]
    store.save(600, make_state(600))
    store.save(700, make_state(700))
    assert best_steps(store) == [500], "the checkpoint at 350 is gone"
    assert [each.name for each in store.list()] == ["checkpoint-000000000600.pt", "checkpoint-000000000700.pt"]
    (told,) = check_best(store.folder, ME)
    assert (told.env_step, told.fault) == (500, None)
    step, learner = load_part(store.folder / told.name, "learner", run_id=ME)
    assert step == 500
    assert is_same(learner, make_state(500)["learner"])


def test_a_run_that_returns_to_a_checkpoint_has_the_best_policy_before_it(store: CheckpointStore) -> None:
    store.save_best(300, make_state(300)["learner"])
    store.save(350, make_state(350))
    store.save_best(400, make_state(400)["learner"])
    rename_newer(store.folder, 350)
    assert best_steps(store) == [300]
    store.save_best(390, make_state(390)["learner"])
    store.save(400, make_state(400))
    assert best_steps(store) == [300, 390]


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_waits(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on, write = Event(), checkpoint._write_tensors

    def write_slowly(value: Any, sink: checkpoint_file.Sink) -> None:
        assert may_go_on.wait(60)
        write(value, sink)

    monkeypatch.setattr(checkpoint, "_write_tensors", write_slowly)
    store.save_in_background(400, make_state(400))
    assert store.list() == []
    next_one = Thread(target=store.save_in_background, args=(800, make_state(800)))
    next_one.start()
    next_one.join(0.2)
    assert next_one.is_alive()
    may_go_on.set()
    next_one.join(60)
    assert store.save_best(800, make_state(800)["learner"]) is not None  # waits, too
    assert [each.env_step for each in check_checkpoints(store.folder, ME)] == [800, 400]
    loaded = store.load_latest()
    assert loaded is not None
    assert is_same(loaded.state, make_state(800))


def test_the_error_of_a_background_save_is_raised_at_the_next(store: CheckpointStore) -> None:
    store.folder.write_text("no folder")
    store.save_in_background(400, make_state(400))
    store.wait()
    with pytest.raises(FileExistsError):
        store.save_in_background(800, make_state(800))
    store.folder.unlink()
    store.save_in_background(800, make_state(800))
    store.wait()
    assert [each.env_step for each in check_checkpoints(store.folder, ME)] == [800]
