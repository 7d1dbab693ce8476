"""A refit beside the training (`embed.overlap = on`): fitted on a second core from a frozen copy.

At one refit step the nodes are sampled and the embedder copied; a thread fits the copy while training goes on with the
embedder as it was; at the next refit step, exactly there, the fitted copy takes its place and every node is embedded
anew. Nothing that the thread reads can change meanwhile, so the rows are the same however threads are scheduled. A
checkpoint waits for the fit and holds its result. Before: memory (`sample`); after: memory (`reproject`).
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from emtc_core.devices import copy_state
from emtc_core.embedder.fit import EmbedStats, Sample, fit
from emtc_core.embedder.networks import Embedder
from emtc_core.embedder.outside import OutsideEmbedder

Fitted = tuple[dict[str, Any], EmbedStats]


class Fits:
    """Refits, at once or overlapped; then at most one is under way."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="refit")
        self._wait: Callable[[], Fitted] | None = None
        self._copy: Embedder | None = None

    def refit(self, sample: Sample) -> dict[str, float] | None:
        """Train the embedder on a sample of the memory; return what is recorded of it.

        Overlapped, what was begun at the last refit step is taken over and another fit begun; None at the first.
        """
        if isinstance(self._embedder, OutsideEmbedder):
            started = time.monotonic()
            return self._embedder.fit(sample) | {"embedder/fit_ms": (time.monotonic() - started) * 1e3}
        if self._embedder.config.overlap == "off":
            return _describe(fit(self._embedder, sample))
        stats = self.finish()
        self.start(sample)
        return None if stats is None else _describe(stats)

    def start(self, sample: Sample) -> None:
        """Begin to fit a copy of the embedder as it is now."""
        if self._copy is None:  # later ones are put into it, so that a GPU keeps what it prepared for the first refit
            self._copy = self._embedder.copy()
        else:
            self._copy.set_state(self._embedder.get_state())
        self._wait = self._pool.submit(_fit, self._copy, sample).result

    def finish(self) -> EmbedStats | None:
        """Wait for the fit that was begun and take its result over; None where none was."""
        if self._wait is None:
            return None
        state, stats = self._wait()
        self._embedder.set_state(state)
        self._wait = None
        return stats

    def get_state(self) -> dict[str, Any] | None:
        """Wait for the fit and copy its result, for a checkpoint; it is taken over no sooner for that."""
        if self._wait is None:
            return None
        state, stats = self._wait()
        return {"embedder": copy_state(state), "stats": dict(vars(stats))}

    def set_state(self, state: Mapping[str, Any] | None) -> None:
        """Continue from `get_state`."""
        self._wait = None
        if state is not None:
            fitted = dict(state["embedder"]), EmbedStats(**state["stats"])
            self._wait = lambda: fitted


def _fit(embedder: Embedder, sample: Sample) -> Fitted:
    stats = fit(embedder, sample)
    return embedder.get_state(), stats


def _describe(stats: EmbedStats) -> dict[str, float]:
    values = {f"embedder/{name}": value for name, value in stats.means().items()}
    return values | {"embedder/fit_ms": stats.seconds * 1e3}
