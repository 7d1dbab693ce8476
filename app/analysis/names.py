"""What the paper calls an algorithm, an ablation and a setting."""

from collections.abc import Mapping

from app.analysis.settings import ORIGIN, show_value
from emtc_core.config.resolve import Value

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
