"""Settings of a run as dotted keys: which ones affect learning, how values are written, and their names in the paper.

A variant is a group of runs that differ only in their seed (`app.analysis.variants`). Its name contains the settings
that differ from the preset.

`app.jobs.provenance` stores the code and the machine of a run at the start of training. They are settings under
`code.`. The page Compare lists them. Runs of which a plug-in replaced methods are separate variants. Seeds that were
trained by different code get a warning.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal

from emtc_core.config.base import IMPORTED, MEMORY_ALGO_PREFIXES
from emtc_core.config.plugin_settings import PLUGIN, PLUGIN_SETTINGS, find_owner, list_plugin_fields, split_names
from emtc_core.config.resolve import Value, flatten, resolve
from emtc_core.config.run import RunConfig, list_algos, split_algo
from emtc_core.envs.registry import ADAPTERS
from emtc_core.errors import ConfigError
from storage.runs.rows import imported_label

Settings = Mapping[str, Value]

CODE: Final = "code"
PATCHED_CODE: Final = f"{CODE}.patched"
"""Key with the names of the plug-ins that replaced methods of this project. Such a run is a separate variant."""
BUNDLE_KEY = "from"
"""Key with the name of the bundle, a file of exported runs, from which a run was read. It is added to the settings of
runs that are compared with the user's own runs, so that they are separate variants."""
IMPORT_LABEL = f"{IMPORTED}.label"
"""Key with the label of an imported run, which another program trained. Only imported runs have it."""
FOREIGN_PREFIX = "theirs."
"""Prefix of the settings of an imported run that have the keys of the other program."""
TASK_KEYS = frozenset({"env.name", "env.map"})
"""Keys of the settings that determine the task of a run."""
SYMBOLS = {
    "memory.delta": "δ",
    "embed.lambda_rcon": "λ_rcon",
    "embed.lambda_cl": "λ_cl",
    "embed.p_mask": "p_mask",
    "embed.sigma": "σ",
    "gate.tau_start": "τ_start",
    "gate.tau_end": "τ_end",
}
"""Setting → its symbol in the paper."""
EMBEDDER_NAMES = {"random": "random projection", "dcae": "dCAE", "tcse": "TCSE"}
"""Value of `embed.type` → name of the embedder in the paper."""
_SECTIONS = frozenset(RunConfig.model_fields) - {"algo", "seed", "preset", "env"}
"""Sections of which `list_sections` states whether an algorithm reads them."""
_NOT_IN_NAME = frozenset({"algo", "seed", "train.t_max"}) | TASK_KEYS
"""Settings that `find_changes` leaves out: algorithm, seed, training length and task are other parts of a variant."""
_DEVICES = ("train.device", "train.act_device", "train.replay_device", "train.gpu_share", "memory.index_device")
_PREFIXES_WITHOUT_EFFECT = ("record.", "checkpoint.", "eval.", *_DEVICES, "train.threads", f"{CODE}.")
"""Prefixes of settings that do not affect learning."""
_COMPARED_CODE: Final = tuple(
    f"{CODE}.{part}"
    for part in ("source", "modules.", "patched", "python", "torch", "numpy", "numba", "gfootball", "jaxmarl")
)
"""Prefixes of `code.` settings in which the seeds of a variant should agree.

The commit and the machine are not compared: two commits can differ only in the text of a page, two machines only in
their names.
"""
_MAX_LISTED_VALUES: Final = 3
"""Maximum number of values that a warning lists."""
_ABLATIONS: dict[tuple[str, Value], str] = {
    ("gate.enabled", False): "No-TCGM",
    ("embed.type", "dcae"): "No-TCSE",
    ("embed.lambda_cl", 0.0): "No-TCSE (λ_cl = 0)",
    ("embed.type", "random"): "random projection",
}
"""Setting and value → name of the ablation of EMTC.

No-TCGM: without the gate, the weight β of the episodic incentive is 1. No-TCSE: the embedder dCAE, an autoencoder,
without the contrastive loss.
"""


def add_code_settings(config: Mapping[str, Any], versions: Mapping[str, Any]) -> dict[str, Any]:
    """Add the stored code of a run to its settings, under `code`; imported runs remain unchanged."""
    if imported_label(config) is not None:
        return dict(config)
    code = {name: value for name, value in versions.items() if name not in ("resumed", "patched")}
    # an entry of `patched` is "METHOD by PLUG-IN"
    plugins = {text.rpartition(" by ")[2] for text in _list_texts(versions.get("patched"))}
    if plugins:
        code["patched"] = ", ".join(sorted(plugins))
    return {**config, CODE: code} if code else dict(config)


def list_code_warnings(groups: Mapping[str, Iterable[Mapping[str, Value]]]) -> tuple[str, ...]:
    """Find the groups of seeds that were trained by different code.

    Args:
        groups: Settings of all seeds by name of the variant, including those under `code.`.

    Returns:
        One warning per group whose seeds differ in `_COMPARED_CODE`.
    """
    differences = {name: _list_code_differences(list(seeds)) for name, seeds in groups.items()}
    return tuple(
        f"The seeds of {name} were not trained by the same code: {'; '.join(parts)}."
        for name, parts in differences.items()
        if parts
    )


def describe_code(versions: Mapping[str, Any]) -> dict[str, str]:
    """Describe the stored code and machine of a run, as text by label; missing parts are left out."""
    hardware = versions.get("hardware")
    machine = hardware if isinstance(hardware, Mapping) else {}
    modules = versions.get("modules")
    plugins = modules if isinstance(modules, Mapping) else {}
    commit = str(versions.get("commit") or "")
    if commit and versions.get("dirty"):
        commit = f"{commit}, with uncommitted changes ({versions.get('diff')})"
    texts = {
        "Commit": commit,
        "Source of the method": str(versions.get("source") or ""),
        "Plug-in modules": ", ".join(f"{name} ({digest})" for name, digest in plugins.items()),
        "Replaced by plug-ins": ", ".join(_list_texts(versions.get("patched"))),
        "Processor": ", ".join(str(machine[key]) for key in ("cpu", "cores", "memory", "gpu") if machine.get(key)),
        "Resumed with other code": "; ".join(_list_texts(versions.get("resumed"))),
    }
    return {label: text for label, text in texts.items() if text}


def list_libraries(versions: Mapping[str, Any]) -> str:
    """List the names and versions of the installed libraries."""
    skipped = ("source", "commit", "diff")
    return " · ".join(
        f"{name} {text}" for name, text in versions.items() if isinstance(text, str) and name not in skipped
    )


def get_delta_space(config: Mapping[str, Any]) -> Literal["raw", "normalized"]:
    """Return the space in which the memory of a run compares embeddings, `memory.delta_space`."""
    return "raw" if config.get("memory", {}).get("delta_space") == "raw" else "normalized"


def is_gate_off(config: Mapping[str, Any]) -> bool:
    """Return whether the stored configuration of a run leaves out the gate: no memory, no incentive, or no gate.

    The settings of imported runs are not stored. For them, the answer is False.
    """
    algo = config.get("algo")
    if imported_label(config) is not None or not isinstance(algo, str):
        return False
    sections = (config.get(name) for name in ("incentive", "gate"))
    is_off = any(isinstance(section, Mapping) and section.get("enabled") is False for section in sections)
    return is_off or not algo.startswith(MEMORY_ALGO_PREFIXES)


def is_irrelevant_for_learning(key: str) -> bool:
    """Return whether a setting does not affect learning."""
    return key.startswith(_PREFIXES_WITHOUT_EFFECT) and key != PATCHED_CODE


def list_sections(algo: str) -> set[str]:
    """List the sections of settings that an algorithm reads, except `env`.

    Raises:
        SettingError: If the algorithm is not installed.
    """
    method, backbone = split_algo(algo)
    sections = {"train", "eval", "record", "checkpoint", backbone}
    if method != "none":
        sections |= {"memory", "embed", "gate", "incentive"}
    if method == "emc":
        sections |= {"curiosity", "ec"}
    if backbone in ("cds", "dmix"):  # they use mixers of QPLEX and QMIX
        sections |= {"qplex", "qmix"}
    return sections


@lru_cache(maxsize=8192)
def is_read(key: str, algo: str) -> bool:
    """Return whether an algorithm reads a setting; True for an algorithm that is not installed."""
    section, _, rest = key.partition(".")
    if not rest or section not in _SECTIONS or algo not in list_algos():
        return True
    if section == PLUGIN:
        return rest.partition(".")[0] == split_algo(algo)[1]
    return section in list_sections(algo)


def has_effect(key: str, settings: Settings) -> bool:
    """Return whether the environment, the algorithm or a plug-in of a run reads a setting.

    True for a key of no section, and for an algorithm that is not installed.

    Args:
        key: Key of the setting.
        settings: The flat settings of the run: algorithm, environment, and the settings that name plug-ins.
    """
    algo = str(settings.get("algo"))
    env = settings.get("env.name")
    section, _, rest = key.partition(".")
    if not rest or key in TASK_KEYS or algo not in list_algos():
        return True
    sections = list_sections(algo)
    if owner := find_owner(key):  # the plug-in that declares the setting
        named_plugins = [name for setting in PLUGIN_SETTINGS for name in split_names(str(settings.get(setting, "")))]
        return owner in (env, split_algo(algo)[1], *named_plugins) and section in ("env", PLUGIN, *sections)
    if section == "env":
        # A plug-in environment has no adapter. It uses the settings of PettingZoo, too.
        groups_in_use = (env,) if env in ADAPTERS else (env, "pettingzoo")
        return rest.partition(".")[0] in groups_in_use
    return section not in _SECTIONS or section in sections


def learning_settings(settings: Settings) -> dict[str, Value]:
    """Select the settings that affect learning, in which all runs of a variant agree. The seed is left out."""
    return {key: value for key, value in settings.items() if key != "seed" and not is_irrelevant_for_learning(key)}


def find_changes(settings: Settings) -> dict[str, Value]:
    """Find the settings by which a variant is named: those that differ from the preset, and the preset if not "paper".

    The name of the bundle is added. An imported run has only its label, because the settings of the other program have
    no defaults here.
    """
    bundle = {BUNDLE_KEY: settings[BUNDLE_KEY]} if BUNDLE_KEY in settings else {}
    if IMPORT_LABEL in settings:
        return {IMPORTED: settings[IMPORT_LABEL], **bundle}
    steps = settings.get("train.t_max")
    preset = str(settings.get("preset", "paper"))
    algo = str(settings.get("algo"))
    if algo not in list_algos():
        # the backbone is a plug-in that is not installed: compare with the defaults of the method on QMIX
        algo = f"{algo.rpartition('-')[0]}-qmix".removeprefix("-")
    defaults = _resolve_defaults(
        str(settings.get("env.name")),
        str(settings.get("env.map")),
        algo,
        int(steps) if isinstance(steps, int) else None,
        preset,
    )
    changed = {
        key: value
        for key, value in sorted(settings.items())
        if key not in _NOT_IN_NAME and not is_irrelevant_for_learning(key) and _is_changed(key, value, defaults)
    }
    if changed.get("embed.type") == "dcae" and changed.get("embed.lambda_cl") == 0:
        del changed["embed.lambda_cl"]  # dCAE has no contrastive loss, so this is one ablation and not two
    named_preset = {} if preset == "paper" else {"preset": preset}
    patched = {PATCHED_CODE: settings[PATCHED_CODE]} if PATCHED_CODE in settings else {}
    return {**changed, **named_preset, **patched, **bundle}


def _is_changed(key: str, value: Value, defaults: Settings) -> bool:
    """Return whether a setting differs from its default.

    A setting that is not in `defaults` is changed only if a plug-in declares it with another default.
    """
    if key in defaults:
        return defaults[key] != value
    if find_owner(key) is None:
        return False
    declared_defaults = {name: field.default for name, field in list_plugin_fields()}
    return value != declared_defaults.get(key)


@lru_cache(maxsize=512)
def _resolve_defaults(env: str, map: str, algo: str, steps: int | None, preset: str) -> Settings:
    """Return the default settings of a task; empty for a task that this version does not have."""
    try:
        config = resolve(env=env, map=map, algo=algo, steps=steps, preset=preset)
    except ConfigError:
        return {}
    return flatten(config)


def write_value(value: Value) -> str:
    """Write a value in the form that the command line accepts: false, 0.0018."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_value(value: Value) -> str:
    """Write a value in the form of the paper: 0.05, 1.8e-3."""
    # a small number with at most two decimals, such as 0.01, is not written as a power of ten
    if isinstance(value, float) and 0 < abs(value) < 0.05 and f"{value:g}" != f"{value:.2f}":
        mantissa, _, exponent = f"{value:.4e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return write_value(value)


def name_algo(algo: str) -> str:
    """Return the name of an algorithm in the paper: "emtc-qplex" is EMTC(QPLEX), "cds" is CDS.

    The name of an algorithm that this program does not have is not changed: another program trained the run.
    """
    if algo not in list_algos():
        return algo
    method, _, backbone = algo.rpartition("-")
    return f"{method.upper()}({backbone.upper()})" if method in ("emtc", "emu") else algo.upper()


def name_run_algo(settings: Settings) -> str:
    """Return the name of the algorithm of a run, from its flat settings: "QMIX", or "qmix, imported (sacred)"."""
    algo = str(settings.get("algo"))
    return name_method(algo, {IMPORTED: settings[IMPORT_LABEL]}) if IMPORT_LABEL in settings else name_algo(algo)


def name_change(algo: str, key: str, value: Value) -> str:
    """Name a changed setting: by its ablation in the paper, by its symbol, otherwise by its key."""
    if key == BUNDLE_KEY:
        return f"from {value}"
    if key == IMPORTED:
        return f"imported ({value})"
    if key.startswith(FOREIGN_PREFIX):
        return f"{key.removeprefix(FOREIGN_PREFIX)} = {format_value(value)}"
    if key == PATCHED_CODE:
        return f"patched by {value}"
    if algo.startswith("emtc-") and (key, value) in _ABLATIONS:
        return _ABLATIONS[key, value]
    return f"{SYMBOLS.get(key, key)} = {format_value(value)}"


def name_method(algo: str, changes: Mapping[str, Value]) -> str:
    """Name an algorithm with its changed settings: "EMTC(QPLEX), No-TCGM, δ = 1.8e-3".

    Args:
        algo: Key of the algorithm.
        changes: Settings that differ from the preset.
    """
    remaining = dict(changes)
    parts = [algo if IMPORTED in changes else name_algo(algo)]
    if (tau := remaining.get("gate.tau_start")) is not None and tau == remaining.get("gate.tau_end"):
        parts.append(f"τ = {format_value(tau)}")
        del remaining["gate.tau_start"], remaining["gate.tau_end"]
    parts += [name_change(algo, key, value) for key, value in remaining.items()]
    return ", ".join(parts)


def name_budget(steps: Value) -> str:
    """Write the configured training length: "20,000 steps"."""
    return f"{steps:,} steps" if isinstance(steps, int) else "unknown budget"


def name_task(settings: Mapping[str, Value]) -> str:
    """Name the map, with the environment unless it is the embedded one: "3m", "3m [smac]"."""
    env = settings.get("env.name", "skirmish")
    return str(settings.get("env.map")) if env == "skirmish" else f"{settings.get('env.map')} [{env}]"


def format_steps(steps: int) -> str:
    """Write env steps for the header of a column: 0.8M, 52,340."""
    return f"{steps / 1e6:g}M" if steps and steps % 100_000 == 0 else f"{steps:,}"


def parse_steps(text: str) -> list[int]:
    """Parse a list of env steps, "0.8M, 50k, 1200"; empty if a part is not a number above 0."""
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


def _list_texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _list_code_differences(seeds: list[Mapping[str, Value]]) -> list[str]:
    """List the parts of the code that differ between the seeds that store them, with their values."""
    keys = sorted({key for seed in seeds for key in seed if key.startswith(_COMPARED_CODE)})
    differences = []
    for key in keys:
        values = list(dict.fromkeys(str(seed[key]) for seed in seeds if key in seed))
        if len(values) > 1:
            more = " …" if len(values) > _MAX_LISTED_VALUES else ""
            differences.append(f"{key.removeprefix(f'{CODE}.')} {' and '.join(values[:_MAX_LISTED_VALUES])}{more}")
    return differences
