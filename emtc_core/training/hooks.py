"""Calls of the plug-in metrics and callbacks of a training.

A metric is a function `metric(episode) -> float`, recorded as `user/<its name>`. A callback is made once per run by
`make(config)` and has one or more of these methods:

    on_episode(episode, env_step)       after an episode entered the memory
    on_evaluation(evaluation, env_step) after greedy test episodes; its numbers are recorded as user/eval.<name>
    on_refit(values, env_step)          after the embedder was trained; `values` are its metrics by name

Each method returns None or a dictionary of numbers, recorded as `user/<name>`. The arguments are not copies, so a
method must not change them. The state of a callback is not part of a checkpoint.
"""

from collections.abc import Callable, Mapping
from typing import Any

from emtc_core.config.plugin_settings import split_names
from emtc_core.config.run import RunConfig
from emtc_core.errors import PluginError
from emtc_core.metrics import prepare_open_values
from emtc_core.plugins import get_plugin
from emtc_core.recorder import EvaluationRecord
from emtc_core.rollout.episode import Episode

EVENTS = ("on_episode", "on_evaluation", "on_refit")
"""Names of the methods that a callback may have."""


class Hooks:
    """Calls the plug-in metrics and callbacks of one run; does nothing if there are none."""

    def __init__(self, config: RunConfig) -> None:
        """Make the metrics and the callbacks.

        Raises:
            PluginError: If a plug-in is not installed, or a callback has none of the methods `EVENTS`.
        """
        record = config.record
        self._metrics: dict[str, Callable[[Episode], float]] = {
            name: get_plugin("metric", name).bind(record.plugin) for name in split_names(record.metrics)
        }
        self._callbacks: list[Any] = []
        for name in split_names(record.callbacks):
            callback = get_plugin("callback", name).bind(record.plugin)(config)
            if not any(callable(getattr(callback, event, None)) for event in EVENTS):
                raise PluginError(f"must have one of {', '.join(EVENTS)}", key=f"callback {name}")
            self._callbacks.append(callback)

    def on_episode(self, episode: Episode, env_step: int) -> dict[str, float]:
        """Call metrics and callbacks for a training episode; `env_step` is the step of its last transition."""
        values = {name: metric(episode) for name, metric in self._metrics.items()}
        return prepare_open_values("user", values | self._call_callbacks("on_episode", episode, env_step))

    def on_evaluation(self, evaluation: EvaluationRecord, env_step: int) -> dict[str, float]:
        """Call callbacks for an evaluation. Names get the prefix "eval.": their env steps differ from the others."""
        values = self._call_callbacks("on_evaluation", evaluation, env_step)
        return prepare_open_values("user", {f"eval.{name}": value for name, value in values.items()})

    def on_refit(self, values: Mapping[str, float], env_step: int) -> dict[str, float]:
        """Call callbacks after a refit; `values` are its metrics, empty if there was no refit."""
        return prepare_open_values("user", self._call_callbacks("on_refit", dict(values), env_step)) if values else {}

    def _call_callbacks(self, event: str, subject: Any, env_step: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for callback in self._callbacks:
            if method := getattr(callback, event, None):
                values |= method(subject, env_step) or {}
        return values
