"""Settings of a run as dotted keys: which make a difference, how they are written, what the paper calls them."""

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

SYMBOLS = {
    "memory.delta": "δ",
    "embed.lambda_rcon": "λ_rcon",
    "embed.lambda_cl": "λ_cl",
    "embed.p_mask": "p_mask",
    "embed.sigma": "σ",
    "gate.tau_start": "τ_start",
    "gate.tau_end": "τ_end",
}
EMBEDDERS = {"random": "random projection", "dcae": "dCAE", "tcse": "TCSE"}
_ABLATIONS: dict[tuple[str, Value], str] = {
    ("gate.enabled", False): "No-TCGM",
    ("embed.type", "dcae"): "No-TCSE",
    ("embed.lambda_cl", 0.0): "No-TCSE (λ_cl = 0)",
    ("embed.type", "random"): "random projection",
}
"""Parts that EMTC can be left without: β = 1 everywhere; the autoencoder alone, without contrast."""


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


def name_algo(algo: str) -> str:
    """An algorithm's name as in the paper: "emtc-qplex" is EMTC(QPLEX), "cds" is CDS."""
    method, _, backbone = algo.rpartition("-")
    return f"{method.upper()}({backbone.upper()})" if method in ("emtc", "emu") else algo.upper()


def name_change(algo: str, key: str, value: Value) -> str:
    """The name of one changed setting: an ablation by its name in the paper, a symbol, else the setting's own key."""
    if key == ORIGIN:
        return f"from {value}"
    if algo.startswith("emtc-") and (key, value) in _ABLATIONS:
        return _ABLATIONS[key, value]
    return f"{SYMBOLS.get(key, key)} = {show_value(value)}"


def name_method(algo: str, changes: Mapping[str, Value]) -> str:
    """An algorithm's name with what was changed: "EMTC(QPLEX), No-TCGM, δ = 1.8e-3"."""
    rest = dict(changes)
    said = []
    if (tau := rest.get("gate.tau_start")) is not None and tau == rest.get("gate.tau_end"):
        said.append(f"τ = {show_value(tau)}")
        del rest["gate.tau_start"], rest["gate.tau_end"]
    said += [name_change(algo, key, value) for key, value in rest.items()]
    return ", ".join([name_algo(algo), *said])


def name_budget(steps: Value) -> str:
    """How long a run was to train, in words."""
    return f"{steps:,} steps" if isinstance(steps, int) else "unknown budget"


def name_task(settings: Mapping[str, Value]) -> str:
    """The map's name, with the environment's where it is not the embedded one: "3m", "3m [smac]"."""
    env = settings.get("env.name", "skirmish")
    return str(settings.get("env.map")) if env == "skirmish" else f"{settings.get('env.map')} [{env}]"


def show_steps(steps: int) -> str:
    """Write env steps as a column's head: 0.8M, 52,340."""
    return f"{steps / 1e6:g}M" if steps and steps % 100_000 == 0 else f"{steps:,}"


def parse_steps(text: str) -> list[int]:
    """Read env steps as people write them, "0.8M, 50k, 1200"; nothing if any part is no number above 0."""
    steps = []
    for part in text.replace(";", ",").split(","):
        digits = part.strip().lower()
        scale = {"k": 1e3, "m": 1e6}.get(digits[-1:], 1.0)
        try:
            value = float(digits.rstrip("km")) * scale
        except ValueError:
            return []
        if not 0 < value < 1e12:
            return []
        steps.append(round(value))
    return sorted(set(steps))
