"""Refits of the embedder, optionally in parallel with the training (`embed.overlap = on`).

At a refit step, the nodes are sampled and the embedder is copied. A thread fits the copy on a second core, while
training continues with the old weights. At the next refit step, the embedder gets the fitted weights and all nodes are
embedded again. The thread reads only its own copies, so the results do not depend on the scheduling of threads. A
checkpoint waits for the fit and stores its result. `EpisodicMemory.sample` samples the nodes, and
`EpisodicMemory.reproject` embeds them again.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from emtc_core.devices import copy_state
from emtc_core.embedder.fit import EmbedStats, Sample, fit
from emtc_core.embedder.networks import Embedder
from emtc_core.embedder.plugin import PluginEmbedder

FitResult = tuple[dict[str, Any], EmbedStats]  # state of the fitted embedder, losses of the fit


class RefitRunner:
    """Runs the refits of an embedder, immediately or in a thread. At most one fit runs at a time."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="refit")
        self._wait: Callable[[], FitResult] | None = None
        self._copy: Embedder | None = None

    def refit(self, sample: Sample) -> dict[str, float] | None:
        """Train the embedder on a sample of the memory.

        With overlap, this applies the fit that the previous refit step started, and starts the next one.

        Returns:
            Values to record by metric name; None at the first refit step with overlap.
        """
        if isinstance(self._embedder, PluginEmbedder):
            started = time.monotonic()
            return self._embedder.fit(sample) | {"embedder/fit_ms": (time.monotonic() - started) * 1e3}
        if self._embedder.config.overlap == "off":
            return _make_metrics(fit(self._embedder, sample))
        stats = self.finish()
        self.start(sample)
        return None if stats is None else _make_metrics(stats)

    def start(self, sample: Sample) -> None:
        """Start to fit a copy of the current embedder in the thread."""
        if self._copy is None:  # the copy is reused, so that its buffers and its CUDA graph are made only once
            self._copy = self._embedder.copy()
        else:
            self._copy.set_state(self._embedder.get_state())
        self._wait = self._pool.submit(_fit, self._copy, sample).result

    def finish(self) -> EmbedStats | None:
        """Wait for the running fit and load its result into the embedder; return None if no fit was started."""
        if self._wait is None:
            return None
        state, stats = self._wait()
        self._embedder.set_state(state)
        self._wait = None
        return stats

    def get_state(self) -> dict[str, Any] | None:
        """Wait for the running fit and copy its result for a checkpoint. The embedder itself does not change."""
        if self._wait is None:
            return None
        state, stats = self._wait()
        return {"embedder": copy_state(state), "stats": dict(vars(stats))}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Restore the result of `get_state`."""
        self._wait = None
        if state is not None:
            result = dict(state["embedder"]), EmbedStats(**state["stats"])
            self._wait = lambda: result


def _fit(embedder: Embedder, sample: Sample) -> FitResult:
    stats = fit(embedder, sample)
    return embedder.get_state(), stats


def _make_metrics(stats: EmbedStats) -> dict[str, float]:
    values = {f"embedder/{name}": value for name, value in stats.means().items()}
    return values | {"embedder/fit_ms": stats.seconds * 1e3}
