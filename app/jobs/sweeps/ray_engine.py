"""The Ray engine: the cluster's nodes hold places for one sweep, and in each an `emtc worker` trains run after run.

Who trains what is decided in the database, as for every worker. So a task, a node or this driver may die at any moment:
a run whose trainer died with them is claimed again and goes on from its checkpoint, and trainers that live on finish
theirs.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from app.jobs.launch import find_trainer
from app.jobs.sweeps.ray_cluster import Cluster
from app.jobs.sweeps.ray_place import Held, hold_place, list_carried
from app.jobs.sweeps.scheduler import attached, tend
from app.jobs.sweeps.worker import NOTHING, leave_signals
from emtc_core.errors import ClusterError
from storage.engine import Database
from storage.runs.claims import count_work
from storage.runs.sweeps import Sweep, get_sweep

POLL_S = 0.5
MOST_FAILURES = 6
_LONGEST_REST_S = 60.0
_LEAVE_S = 120.0


def run_sweep_on_ray(
    ray: Any,
    cluster: Cluster,
    db: Database,
    sweep_id: str,
    *,
    jobs: int,
    say: Callable[[str], None],
    on_progress: Callable[[Sweep], None] = lambda sweep: None,
) -> Sweep:
    """Keep up to `jobs` places of a cluster at a sweep until its runs have ended or it is stopped.

    Args:
        ray: The module, connected.
        cluster: What each place asks for.
        db: An open database, which every node reaches by the same URL.
        sweep_id: The sweep.
        jobs: Runs at once.
        say: Is given one sentence at a time.
        on_progress: Is given the sweep every now and then.

    Raises:
        StorageError: If there is no such sweep.
        ClusterError: If no worker can be kept at work.
        KeyboardInterrupt: At a signal; the workers have given their runs back then.
    """
    with leave_signals() as leave, attached(db, sweep_id, jobs):
        places = Places(ray, cluster, db, sweep_id, jobs=jobs, say=say)
        try:
            return tend(db, sweep_id, places.tend, on_progress=on_progress, poll_s=POLL_S, leave=leave)
        except KeyboardInterrupt:
            say("Leaving: each worker gives its run back with a checkpoint. A second signal leaves them to themselves.")
            raise
        finally:
            places.close()


class Places:
    """The places of a cluster where workers of one sweep are, or will be once there is room."""

    def __init__(
        self, ray: Any, cluster: Cluster, db: Database, sweep_id: str, *, jobs: int, say: Callable[[str], None]
    ) -> None:
        """Hold none yet; `say` is given one sentence at a time."""
        self._ray, self._db, self._sweep_id, self._jobs, self._say = ray, db, sweep_id, jobs, say
        # Ray's own retries would hide what happened, and its queue knows nothing of what the database does.
        options = {
            "num_cpus": cluster.cpus,
            "num_gpus": cluster.gpus,
            "max_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._task = ray.remote(**options)(hold_place)
        self._arguments = {"at_most": jobs, "gpus": cluster.gpus, "carried": list_carried()}
        self._held: list[Any] = []
        self._said: set[str] = set()
        self._in_vain = self._failures = 0
        self._rest_until = self._done_before = 0.0

    def tend(self) -> None:
        """Note which places were left, and take as many as there are runs to claim.

        Raises:
            ClusterError: If one place after the other fails.
            StorageError: If the database does not answer.
        """
        self._collect()
        free, working = count_work(self._db, self._sweep_id, has_trainer=find_trainer)
        idle = len(self._held) - min(len(self._held), working)
        wanted = min(free, self._jobs - working) - idle
        if time.monotonic() < self._rest_until:
            return
        for _ in range(wanted):
            self._held.append(self._task.remote(self._db.url, self._sweep_id, **self._arguments))

    def close(self) -> None:
        """Cancel what is left; each worker gives its run back with a checkpoint."""
        for place in self._held:
            self._ray.cancel(place)
        if self._held:
            self._ray.wait(self._held, num_returns=len(self._held), timeout=_LEAVE_S)

    def _collect(self) -> None:
        if not self._held:
            return
        left, self._held = self._ray.wait(self._held, num_returns=len(self._held), timeout=0)
        for place in left:
            try:
                self._note(self._ray.get(place))
            except self._ray.exceptions.RayError as error:  # a dead task, node or owner, or a node without EMTC Lab
                self._fail(_explain(error))

    def _note(self, held: Held) -> None:
        last = held.said[-1] if held.said else "it said nothing."
        if held.code:
            self._fail(f"A worker on {held.host} ended with code {held.code}: {last}")
        elif last == NOTHING:
            for sentence in held.said[:-1]:
                self._say_once(sentence)
            self._rest()
        else:
            self._in_vain = self._failures = 0

    def _fail(self, sentence: str) -> None:
        """Write it to the log, and give up when it is the only thing that happens.

        Raises:
            ClusterError: If it is.
        """
        self._say_once(sentence)
        if not self._rest():
            return
        done = get_sweep(self._db, self._sweep_id).done
        self._failures = 1 if done > self._done_before else self._failures + 1
        self._done_before = done
        if self._failures >= MOST_FAILURES:
            raise ClusterError(f"Places failed {MOST_FAILURES} times, and no run went on. {sentence}")

    def _rest(self) -> bool:
        """Take no place for a while, each time for longer; False if this was the case already."""
        now = time.monotonic()
        if now < self._rest_until:
            return False
        self._rest_until = now + min(_LONGEST_REST_S, 2.0**self._in_vain)
        self._in_vain += 1
        return True

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


def _explain(error: Exception) -> str:
    """Why a place was lost, in a sentence instead of Ray's many lines."""
    text = str(error)
    if node := re.search(r"node it was running on is dead.*?Node IP: ([^,\s]+)", text):
        return f"A node of the cluster is lost ({node[1]}). What its trainers cannot finish goes on elsewhere."
    cause = getattr(error, "cause", None)  # what the task itself raised
    words = f"{type(cause).__name__}: {cause}" if cause is not None else text
    return f"A place of the cluster is lost: {next(iter(words.strip().splitlines()), type(error).__name__)[:300]}"
