"""Settings of a run as dotted keys: which of them make a difference, and how they are written."""

from collections.abc import Mapping
from functools import lru_cache

from emtc_core.config.resolve import Value, flatten_tree, resolve
from emtc_core.errors import ConfigError

Settings = Mapping[str, Value]

ORIGIN = "from"
"""No setting of a run: which bundle it stands in, where it stands beside one's own. Part of what makes a variant."""
TASK = frozenset({"env.name", "env.map"})
_IDENTITY = frozenset({"algo", "seed", "train.t_max"}) | TASK
_HARMLESS = ("record.", "checkpoint.", "eval.", "train.device", "train.replay_device", "train.threads")
"""Settings that do not change what is learned."""


def is_harmless(key: str) -> bool:
    """Whether a setting leaves what is learned alone."""
    return key.startswith(_HARMLESS)


def learning_settings(settings: Settings) -> dict[str, Value]:
    """Keep the settings in which two seeds of one variant must agree."""
    return {key: value for key, value in settings.items() if key != "seed" and not is_harmless(key)}


def find_changes(settings: Settings) -> dict[str, Value]:
    """Find what was set otherwise than the preset says, the preset's own name included."""
    steps = settings.get("train.t_max")
    preset = str(settings.get("preset", "paper"))
    usual = _usual(
        str(settings.get("env.name")),
        str(settings.get("env.map")),
        str(settings.get("algo")),
        int(steps) if isinstance(steps, int) else None,
        preset,
    )
    changed = {
        key: value
        for key, value in sorted(settings.items())
        if key not in _IDENTITY and not is_harmless(key) and key in usual and usual[key] != value
    }
    told = {} if preset == "paper" else {"preset": preset}
    return {**changed, **told, **({ORIGIN: settings[ORIGIN]} if ORIGIN in settings else {})}


@lru_cache(maxsize=512)
def _usual(env: str, map: str, algo: str, steps: int | None, preset: str) -> Settings:
    """Resolve the same task without any change; nothing is usual for a task that this version does not know."""
    try:
        config = resolve(env=env, map=map, algo=algo, steps=steps, preset=preset)
    except ConfigError:
        return {}
    return flatten_tree(config.model_dump(mode="json"))


def write_value(value: Value) -> str:
    """Write a value as the command line takes it: false, 0.0018."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def show_value(value: Value) -> str:
    """Write a value as the paper does: 0.05, 1.8e-3."""
    if isinstance(value, float) and 0 < abs(value) < 0.05 and f"{value:g}" != f"{value:.2f}":
        mantissa, _, exponent = f"{value:.4e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return write_value(value)
