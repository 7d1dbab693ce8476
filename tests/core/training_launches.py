"""What a training on 3s_vs_5z launches on a GPU, and where its host waits for it, counted on an imitated one.

`python -m tests.core.training_launches` prints the table; `--json` prints the counts for the tests. Networks and
batches are small. The first rounds, in which graphs are captured, are not counted.
"""

import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from emtc_core.config.resolve import resolve
from emtc_core.control import NoControl
from emtc_core.envs.registry import make_env
from emtc_core.learner.learner import ValueLearner
from emtc_core.recorder import NullRecorder
from emtc_core.threads import configure_threads
from emtc_core.training.checkpoint import CheckpointStore
from emtc_core.training.episodic import EpisodicPart
from emtc_core.training.trainer import Trainer
from tests.core.imitated_gpu import ACTIVITY, GPU, imitate

WARM_UP_STEPS, STEPS = 2_000, 3_100
SETTINGS = {
    "train.hidden": 16,
    "eval.interval": 1_000_000,
    "train.burn_in": 32,
    "embed.samples": 4096,
    "train.batch": 4,
}
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("round", ValueLearner, "start_episodes"),
    ("vector step", ValueLearner, "act"),
    ("episode", Trainer, "_process_episode"),
    ("update", Trainer, "_update"),
    ("target copy", ValueLearner, "on_episodes"),
    ("refit", EpisodicPart, "refit"),
    ("row of metrics", Trainer, "_record_metrics"),
    ("gate statistics", Trainer, "_record_gate_stats"),
)
"""Name of a stage, and the method that is one call of it. Everything else is counted as "rest"."""


@dataclass
class StageCount:
    """Activity of the calls of one stage."""

    calls: int = 0
    launches: int = 0
    waits: int = 0
    most_launches: int = 0  # in one call
    most_waits: int = 0
    operations: Counter[str] = field(default_factory=Counter)


class StageCounter:
    """Attributes launches and waits to the stage that runs."""

    def __init__(self) -> None:
        self.counts: dict[str, StageCount] = {"rest": StageCount()}
        self._stages = ["rest"]

    def wrap(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Make a function that counts as a call of a stage. A stage inside of another is counted only for itself."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.collect()
            self._stages.append(stage)
            count = self.counts.setdefault(stage, StageCount())
            before = count.launches, count.waits
            try:
                return function(*args, **kwargs)
            finally:
                self.collect()
                self._stages.pop()
                count.calls += 1
                count.most_launches = max(count.most_launches, count.launches - before[0])
                count.most_waits = max(count.most_waits, count.waits - before[1])

        return call

    def collect(self) -> None:
        """Add the activity since the last call to the present stage."""
        count = self.counts.setdefault(self._stages[-1], StageCount())
        count.launches += ACTIVITY.launches.total()
        count.waits += ACTIVITY.waits.total()
        count.operations.update(ACTIVITY.launches)
        count.operations.update({f"wait: {reason}": n for reason, n in ACTIVITY.waits.items()})
        ACTIVITY.clear()


def count_training() -> dict[str, StageCount]:
    """Train on the imitated GPU and count the activity of each stage after the first rounds."""
    counter = StageCounter()
    with imitate(), ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        for stage, owner, name in STAGES:
            stack.enter_context(patch.object(owner, name, counter.wrap(stage, getattr(owner, name))))
        config = resolve(env="skirmish", map="3s_vs_5z", steps=100 * STEPS, overrides=SETTINGS)
        training, evaluation = (make_env(config.env, n_envs=config.train.n_envs) for _ in range(2))
        run = Trainer(
            config,
            env=training,
            eval_env=evaluation,
            recorder=NullRecorder(),
            control=NoControl(),
            checkpoints=CheckpointStore(Path(folder), keep=1),
            device=GPU,
        )
        while run.env_step < WARM_UP_STEPS:
            run._run_due_tasks()
            run.step()
        counter.collect()
        counter.counts.clear()
        while run.env_step < STEPS:
            run._run_due_tasks()
            run.step()
        counter.collect()
    return counter.counts


def main() -> None:
    """Print the counts."""
    warnings.simplefilter("ignore")
    configure_threads()
    counts = count_training()
    if "--json" in sys.argv:
        json.dump({stage: vars(count) for stage, count in counts.items()}, sys.stdout)
        return
    for stage, count in counts.items():
        each = max(count.calls, 1)
        sys.stdout.write(
            f"{stage:16} {count.calls:5} calls  per call: launches {count.launches / each:6.1f} (most "
            f"{count.most_launches:4}), waits {count.waits / each:5.1f} (most {count.most_waits:3})  "
            f"{dict(count.operations.most_common(9))}\n"
        )


if __name__ == "__main__":
    main()
