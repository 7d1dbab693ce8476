"""Settings of a run as dotted keys: which make a difference, how they are written, what the paper calls them.

And by which code and on which machine a run was trained, as `app.jobs.provenance` stored it when its trainer began:
as settings under `code.` that Compare lists, as the reason why a patched method is a variant of its own, and as a
doubt about seeds of one group.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from emtc_core.config.base import IMPORTED
from emtc_core.config.outside import ORIGINS, PLUGGED, argument_fields, owner_of
from emtc_core.config.resolve import Value, flatten_tree, resolve
from emtc_core.config.run import list_algos
from emtc_core.errors import ConfigError
from storage.runs.rows import imported_label

CODE: Final = "code"
PATCHED: Final = f"{CODE}.patched"
"""What a module from outside put in the place of this project's own: such a run is a variant of its own."""
_MATTERS: Final = ("source", "modules.", "patched", "python", "torch", "numpy", "numba", "gfootball", "jaxmarl")
"""Where seeds of one group should agree. A commit may differ by a page's text, and a machine by its name."""
_MOST_TOLD: Final = 3


def with_code(config: Mapping[str, Any], versions: Mapping[str, Any]) -> dict[str, Any]:
    """Put what a run stored of its code beside its settings, under `code`; an imported run has none of ours."""
    if imported_label(config) is not None:
        return dict(config)
    told = {name: value for name, value in versions.items() if name not in ("resumed", "patched")}
    if origins := ", ".join(sorted({text.rpartition(" by ")[2] for text in _texts(versions.get("patched"))})):
        told["patched"] = origins
    return {**config, CODE: told} if told else dict(config)


def doubt_seeds(groups: Mapping[str, Iterable[Mapping[str, Value]]]) -> tuple[str, ...]:
    """Say which groups of seeds were trained by code that differs.

    Args:
        groups: Name of a variant → the settings of each of its seeds, with those under `code.`.

    Returns:
        One sentence for each group whose seeds differ in what matters.
    """
    found = ((name, _differences(list(seeds))) for name, seeds in groups.items())
    return tuple(
        f"The seeds of {name} were not trained by the same code: {'; '.join(differ)}."
        for name, differ in found
        if differ
    )


def describe_code(versions: Mapping[str, Any]) -> dict[str, str]:
    """Lay out for people what a run stored of its code and its machine; parts that it did not store are left out."""
    hardware = versions.get("hardware")
    machine = hardware if isinstance(hardware, Mapping) else {}
    modules = versions.get("modules")
    outside = modules if isinstance(modules, Mapping) else {}
    told = {
        "Commit": _commit(versions),
        "Source of the method": str(versions.get("source") or ""),
        "Modules from outside": ", ".join(f"{name} ({digest})" for name, digest in outside.items()),
        "Replaced by them": ", ".join(_texts(versions.get("patched"))),
        "Processor": ", ".join(str(machine[key]) for key in ("cpu", "cores", "memory", "gpu") if machine.get(key)),
        "Went on with other code": "; ".join(_texts(versions.get("resumed"))),
    }
    return {name: text for name, text in told.items() if text}


def list_libraries(versions: Mapping[str, Any]) -> str:
    """Names and versions of what was installed."""
    own = ("source", "commit", "diff")
    return " · ".join(f"{name} {text}" for name, text in versions.items() if isinstance(text, str) and name not in own)


def _commit(versions: Mapping[str, Any]) -> str:
    commit = str(versions.get("commit") or "")
    dirty = f", with changes that were not committed ({versions.get('diff')})" if versions.get("dirty") else ""
    return f"{commit}{dirty}" if commit else ""


def _texts(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _differences(seeds: list[Mapping[str, Value]]) -> list[str]:
    """Which parts of the code differ between seeds that all stored it, with their values."""
    keys = sorted({key for seed in seeds for key in seed if key.startswith(_KEYS)})
    differ = []
    for key in keys:
        values = list(dict.fromkeys(str(seed[key]) for seed in seeds if key in seed))
        if len(values) > 1:
            more = " …" if len(values) > _MOST_TOLD else ""
            differ.append(f"{key.removeprefix(f'{CODE}.')} {' and '.join(values[:_MOST_TOLD])}{more}")
    return differ


_KEYS: Final = tuple(f"{CODE}.{part}" for part in _MATTERS)


Settings = Mapping[str, Value]

ORIGIN = "from"
"""No setting of a run: which bundle it stands in, where it stands beside one's own. Part of what makes a variant."""
LABEL = f"{IMPORTED}.label"
"""What tells an import from another one; there in the settings of an imported run alone."""
TASK = frozenset({"env.name", "env.map"})
_IDENTITY = frozenset({"algo", "seed", "train.t_max"}) | TASK
_HARMLESS = ("record.", "checkpoint.", "eval.", "train.device", "train.replay_device", "train.threads", f"{CODE}.")
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
    return key.startswith(_HARMLESS) and key != PATCHED


def learning_settings(settings: Settings) -> dict[str, Value]:
    """Keep the settings in which two seeds of one variant must agree."""
    return {key: value for key, value in settings.items() if key != "seed" and not is_harmless(key)}


def find_changes(settings: Settings) -> dict[str, Value]:
    """Find what was set otherwise than the preset says, the preset's own name included; of an import, its label."""
    origin = {ORIGIN: settings[ORIGIN]} if ORIGIN in settings else {}
    if LABEL in settings:
        return {IMPORTED: settings[LABEL], **origin}
    steps = settings.get("train.t_max")
    preset = str(settings.get("preset", "paper"))
    usual = _usual(
        str(settings.get("env.name")),
        str(settings.get("env.map")),
        _known_algo(str(settings.get("algo")), settings),
        int(steps) if isinstance(steps, int) else None,
        preset,
    )
    changed = {
        key: value
        for key, value in sorted(settings.items())
        if key not in _IDENTITY and not is_harmless(key) and _is_own(key, value, usual, settings)
    }
    if changed.get("embed.type") == "dcae" and changed.get("embed.lambda_cl") == 0:
        del changed["embed.lambda_cl"]  # the autoencoder alone has no contrast to weigh: one ablation, not two
    told = {} if preset == "paper" else {"preset": preset}
    patched = {PATCHED: settings[PATCHED]} if PATCHED in settings else {}
    return {**changed, **told, **patched, **origin}


def _known_algo(algo: str, settings: Settings) -> str:
    """The algorithm, or the same with another mixer where its own came from outside and is not here."""
    if algo in list_algos() or not any(key.startswith(f"{ORIGINS}.mixer.") for key in settings):
        return algo
    return f"{algo.rpartition('-')[0]}-qmix".removeprefix("-")


def _is_own(key: str, value: Value, usual: Settings, settings: Settings) -> bool:
    """Whether a setting is not the usual one; of the arguments of a plug-in that is not here, nothing is usual."""
    if key in usual:
        return usual[key] != value
    owner = owner_of(key)
    if owner is None or f"{ORIGINS}.{'.'.join(owner)}" not in settings:
        return False
    return value != next((field.default for name, field in argument_fields() if name == key), None)


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


def mark_algo(algo: str, plugins: object) -> str:
    """An algorithm's name with the origin of a mixer from outside: "EMTC(MYMIXER) (my-package 0.1)".

    Args:
        algo: As stored.
        plugins: Kind → name → origin as the run stored it; a stored row may hold anything.
    """
    mixers = plugins.get("mixer") if isinstance(plugins, Mapping) else None
    origin = mixers.get(algo.rpartition("-")[2]) if isinstance(mixers, Mapping) else None
    return f"{name_algo(algo)} ({origin})" if origin else name_algo(algo)


def read_origins(settings: Settings) -> dict[str, dict[str, str]]:
    """Origins of what a run has from outside, kind → name → origin, from its flat settings."""
    found: dict[str, dict[str, str]] = {}
    for key, origin in settings.items():
        head, _, rest = key.partition(".")
        kind, dot, name = rest.partition(".")
        if head == ORIGINS and dot:
            found.setdefault(kind, {})[name] = str(origin)
    return found


def mark_changes(changes: Mapping[str, Value], origins: Mapping[str, Mapping[str, str]]) -> dict[str, Value]:
    """Write the origin behind every value that names something from outside: "halfway (my-package 0.1)"."""
    marked = dict(changes)
    for key, (kind, _) in PLUGGED.items():
        origin = origins.get(kind, {}).get(str(changes.get(key)))
        marked |= {key: f"{changes[key]} ({origin})"} if origin else {}
    return marked


def name_change(algo: str, key: str, value: Value) -> str:
    """The name of one changed setting: an ablation by its name in the paper, a symbol, else the setting's own key."""
    if key == ORIGIN:
        return f"from {value}"
    if key == IMPORTED:
        return f"imported ({value})"
    if key == PATCHED:
        return f"patched by {value}"
    if algo.startswith("emtc-") and (key, value) in _ABLATIONS:
        return _ABLATIONS[key, value]
    return f"{SYMBOLS.get(key, key)} = {show_value(value)}"


def name_method(algo: str, changes: Mapping[str, Value], origins: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """An algorithm's name with what was changed: "EMTC(QPLEX), No-TCGM, δ = 1.8e-3"; `origins` mark what is outside."""
    rest = mark_changes(changes, origins or {})
    said = []
    if (tau := rest.get("gate.tau_start")) is not None and tau == rest.get("gate.tau_end"):
        said.append(f"τ = {show_value(tau)}")
        del rest["gate.tau_start"], rest["gate.tau_end"]
    said += [name_change(algo, key, value) for key, value in rest.items()]
    return ", ".join([mark_algo(algo, origins), *said])


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
