"""The form of the Launch page: task, algorithm and budget first, then all other settings by section, then the start.

The form is a map from field to text, which is in the URL. The texts are checked before anything is drawn, so each
fault is drawn under its field.
"""

import secrets
from collections.abc import Callable, Collection, Mapping

import streamlit as st

from app.analysis.format import escape_markdown, format_duration, format_size
from app.analysis.settings import list_sections, name_algo
from app.jobs import launch_request
from app.jobs.gpu import find_gpu
from app.jobs.launch import (
    TYPICAL_SPEED,
    check_startable,
    estimate,
    launch_run,
)
from app.jobs.launch_request import ALGO, ALSO, CHOICES, DEFAULTS, ENV, MAP, NAME, PRESET, SEEDS, STEPS, Request
from app.jobs.sweeps.plan import Plan
from app.ui import data, messages, view
from app.ui.launch import address, success_rule, sweep
from app.ui.page_state import RUN, Bound
from app.ui.widgets import config_form
from emtc_core.config.plugin_settings import PLUGIN, PLUGIN_SETTINGS, find_owner, split_names
from emtc_core.config.resolve import FieldInfo, describe_fields, describe_presets
from emtc_core.config.run import RunConfig, list_algos, split_algo
from emtc_core.config.values import format_argument
from emtc_core.envs.registry import ADAPTERS, IMPORTED_BY_MAP
from emtc_core.errors import EmtcError, Fault, describe_fault
from storage.files import describe_files_folder

TYPE_A_MAP = (
    "Type the map as module:factory, for example my_game:make. The factory makes your environment. Only the trainer "
    "imports the module."
)
_TOKEN = "launch_token"
_MAX_MESSAGES = 4
_MEMORY_HELP = (
    "At the end of the run: the trainer, the replayed episodes and the nodes of the memory. The Run page shows the "
    "measured use."
)
_GPU_MEMORY_HELP = (
    "At the end of the run: the CUDA context, batches and activations of the largest update, states of the memory, and "
    "the replayed episodes, which are in main memory instead if they do not fit."
)
_LABELS = {
    STEPS: "Training length",
    SEEDS: "Seeds",
    MAP: "Map",
    ENV: "Environment",
    ALGO: "Algorithm",
    ALSO: "Compare with",
}
_KEYS = {NAME: "launch_name"}


def show() -> None:
    """Draw the form. The start button is enabled only while everything is valid."""
    texts = address.read()
    rows = data.env_list()
    maps: dict[str, list[str]] = {}
    for row in rows:
        maps.setdefault(row.env, []).append(row.map)
    obstacles = {row.env: row.reason for row in rows if not row.available}
    request = launch_request.check_request(texts, maps)
    _show_unknown_fields(texts)
    _choices(texts, request, maps, obstacles)
    obstacle = obstacles.get(request.choices[ENV], "")
    config, rule_keys = (None, frozenset[str]()) if obstacle else success_rule.choose(texts, request, maps)
    faults, plan = dict(request.faults), None
    if config is not None and (request.other_algos or len(request.seeds) > 1) and not faults:
        try:
            plan = sweep.make_plan(config, request, texts.get(NAME, ""))
        except EmtcError as exc:
            faults |= launch_request.place_faults(exc, [ALSO])
    if not obstacle and (checked_config := config or request.config):
        faults |= _find_start_faults(checked_config)
    elif not faults and not request.choices[MAP]:
        st.info(TYPE_A_MAP, icon=":material/edit:")
    _settings(texts, request, faults, excluded=rule_keys)
    with st.container(key="launch_bar"):
        _show_faults(faults)
        if plan is not None and not faults:
            _start_sweep(plan)
        else:
            reason = _explain_disabled_start(request, config, faults, obstacle)
            _start(config if not faults else None, texts.get(NAME, ""), reason)


def _explain_disabled_start(
    request: Request, config: RunConfig | None, faults: Mapping[str, Fault], obstacle: str
) -> str:
    """Write why *Start* is disabled; empty if it is enabled, and if the faults above it are the reason."""
    if not messages.may_act():
        return messages.READ_ONLY if view.bundle() is None else "The runs of a bundle are read-only."
    if obstacle:
        return f"{request.choices[ENV]} is not available here: {obstacle}"
    if config is not None or faults:
        return ""
    if not request.choices[MAP]:
        return "Type a map."
    return "Type the return that counts as a success."


def _choices(
    texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]], obstacles: Mapping[str, str]
) -> None:
    """Draw one row each for task, algorithm and budget, then the presets."""
    left, right = st.columns(2)
    with left:
        _select(
            "Environment", ENV, list(maps), request, key="env", help_text="Simulator or game",
            on_text=lambda env: address.put(MAP, None),  # a map belongs to its environment
            format_option=lambda env: f"{env} · not installed" if env in obstacles else env,
        )  # fmt: skip
    with right:
        _map(texts, request, maps)
        address.mark(request.faults, MAP)
    left, right = st.columns(2)
    with left:
        _select(
            "Algorithm", ALGO, list_algos(), request, key="algo", format_option=name_algo,
            help_text="Method and value system. The paper's algorithm is EMTC(QPLEX); its name in commands is "
            "emtc-qplex.",
        )  # fmt: skip
    with right:
        sweep.choose_algos(request)
    left, middle, right = st.columns([6, 3, 7])
    with left:
        info = next(info for info in describe_fields() if info.key == "train.t_max")
        default = format_argument(request.default_steps)
        help_text = f"{config_form.help_of(info)}  \nFormat: 40000, 40k or 1.5M."
        _text("Training length [env steps]", STEPS, texts, default, request, help_text)
    with middle:
        _text(
            "Seeds", SEEDS, texts, DEFAULTS[SEEDS], request,
            "One run for each seed: 1, or 1,2,5, or 1-5. A seed determines all random numbers of its run.",
        )  # fmt: skip
    with right:
        _text("Name", NAME, texts, "", request, "Shown in lists.", placeholder="Auto-generated if empty")
    _presets(request)


def _presets(request: Request) -> None:
    """Draw the presets as cards with one sentence each; the page's style sheet draws the cards."""
    presets = describe_presets()
    value = None if PRESET in request.faults else request.choices[PRESET]
    st.radio(
        "Preset", list(presets), index=None if value is None else 0, horizontal=True, width="stretch",
        captions=[escape_markdown(_take_first_sentence(text)) for text in presets.values()],
        help="Gives the default of every setting below. *Method* compares the presets.",
        **address.bind(PRESET, "preset", value, default=DEFAULTS[PRESET]),
    )  # fmt: skip
    address.mark(request.faults, PRESET)


def _take_first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."


def _select(
    label: str,
    name: str,
    options: list[str],
    request: Request,
    *,
    key: str,
    help_text: str,
    on_text: Callable[[str], None] | None = None,
    format_option: Callable[[str], str] = str,
) -> None:
    """Draw a choice. If the URL names an option that does not exist, nothing is selected and the fault is drawn."""
    is_invalid = name in request.faults
    value = None if is_invalid else request.choices[name]
    bound = address.bind(name, key, value, default=DEFAULTS.get(name, options[0]), on_text=on_text)
    index = None if is_invalid else 0
    st.selectbox(label, options, index=index, **bound, help=help_text, format_func=format_option)
    if name != MAP:
        address.mark(request.faults, name)


def _text(
    label: str,
    name: str,
    texts: Mapping[str, str],
    default: str,
    request: Request,
    help_text: str,
    placeholder: str = "",
) -> None:
    bound = address.bind(name, _KEYS.get(name, name), texts.get(name, default), default=default)
    st.text_input(
        label, **bound, help=help_text, placeholder=placeholder or default, max_chars=launch_request.MAX_CHARACTERS
    )
    address.mark(request.faults, name)


def _map(texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]]) -> None:
    env = request.choices[ENV]
    if env not in IMPORTED_BY_MAP:
        _select("Map", MAP, maps[env], request, key=f"map-{env}", help_text="Map or scenario.")
        return
    st.text_input(
        "Map", **address.bind(MAP, f"map-{env}", texts.get(MAP, "")), placeholder="my_game:make",
        max_chars=launch_request.MAX_CHARACTERS, help="Import path of your environment, as module:factory.",
    )  # fmt: skip


def _settings(
    texts: Mapping[str, str], request: Request, faults: Mapping[str, Fault], *, excluded: frozenset[str]
) -> None:
    """Draw the settings that have an effect for this request, by section; `excluded` are drawn elsewhere."""
    fields = [info for info in describe_fields() if info.key not in launch_request.IDENTITY | excluded]
    plugin_texts = [texts.get(key) or str(request.defaults.get(key, "")) for key in PLUGIN_SETTINGS]
    named_plugins = [name for text in plugin_texts for name in split_names(text)]
    fields = [info for info in fields if _has_effect(info.key, request, named_plugins)]
    unused = launch_request.find_unused_settings(texts, request)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown("##### All settings", width="content")
        search = st.text_input(
            "Search settings", type="search", key="launch_search", placeholder="Search settings: tau, buffer, seed",
            label_visibility="collapsed", width=340,
        )  # fmt: skip
    _show_changes(texts, {info.key for info in fields} | excluded, request)
    if search:
        fields = [info for info in fields if config_form.matches(info, search)]
        if not fields:
            st.caption("No setting matches.")
    for section in dict.fromkeys(info.key.partition(".")[0] for info in fields):
        section_fields = [info for info in fields if info.key.partition(".")[0] == section]
        has_fault = any(info.key in faults for info in section_fields)
        is_changed = any(info.key in texts for info in section_fields)
        title = config_form.SECTION_TITLES.get(section, section.upper())
        icon = ":material/error:" if has_fault else ":material/tune:" if is_changed else None
        # The key opens the section when a search starts.
        key = f"section-{section}-{'found' if search else 'all'}"
        with st.expander(title, expanded=has_fault or bool(search), icon=icon, key=key):
            config_form.show_section(
                section_fields, request.defaults, texts, _bind, lambda key: address.mark(dict(faults), key), unused
            )


def _bind(info: FieldInfo, value: object, default: str, write: Callable[[object], str]) -> Bound:
    return address.bind(info.key, f"set-{info.key}", value, default=default, write=write)


def _show_changes(texts: Mapping[str, str], keys_on_form: set[str], request: Request) -> None:
    """Draw which settings differ from the preset, a button that resets them, and the changed settings without field."""
    changed = [key for key in texts if key not in CHOICES]
    if not changed:
        st.caption("No change from the preset.")
        return
    changes = [
        f"`{key}` = {escape_markdown(texts[key] or 'not set')} "
        f"({escape_markdown(format_argument(request.defaults[key]) or 'not set')})"
        for key in changed
        if key in request.defaults
    ]
    head = "1 change from preset" if len(changes) == 1 else f"{len(changes)} changes from preset"
    summary = f"{head} (preset's value in parentheses): {', '.join(changes)}" if changes else "No known setting"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"{summary}.", width="stretch")
        st.button(
            "Reset to preset", icon=":material/undo:", key="launch_reset",
            on_click=address.keep_only, args=(frozenset(CHOICES),),
        )  # fmt: skip
    hidden = [key for key in changed if key not in keys_on_form and key in request.defaults]
    if hidden:
        values = escape_markdown(", ".join(f"{key} = {texts[key]}" for key in hidden))
        algo = escape_markdown(name_algo(request.choices[ALGO]))
        st.caption(f":material/visibility_off: Stored in the run, but without effect for {algo}: {values}.")


def _has_effect(key: str, request: Request, named_plugins: Collection[str]) -> bool:
    """Whether this algorithm, with this environment and the plug-ins that settings name, reads a setting."""
    section, _, rest = key.partition(".")
    sections = list_sections(request.choices[ALGO])
    env = request.choices[ENV]
    if owner := find_owner(key):
        backbone = split_algo(request.choices[ALGO])[1]
        return owner in (env, backbone, *named_plugins) and section in ("env", PLUGIN, *sections)
    if section == "env":
        return rest.partition(".")[0] in ((env,) if env in ADAPTERS else (env, "pettingzoo"))
    return section in sections


def _find_start_faults(config: RunConfig) -> dict[str, Fault]:
    """Find why this machine cannot start the run, by field."""
    try:
        check_startable(config)
    except EmtcError as exc:
        return launch_request.place_faults(exc)
    return {}


def _show_faults(faults: Mapping[str, Fault]) -> None:
    """List the faults next to the start button, because their fields may be scrolled out of view."""
    lines = []
    for name, fault in faults.items():
        label = _LABELS.get(name)
        text = f"{label}: {launch_request.describe_field_fault(name, fault)}" if label else describe_fault(fault)
        lines.append(escape_markdown(text))
    if lines:
        more = f"  \nAnd {len(lines) - _MAX_MESSAGES} more." if len(lines) > _MAX_MESSAGES else ""
        st.error("  \n".join(lines[:_MAX_MESSAGES]) + more, icon=":material/error:")


def _show_unknown_fields(texts: Mapping[str, str]) -> None:
    """Draw which settings and URL parameters this version does not have, and a button that removes them."""
    valid_names = {info.key for info in describe_fields()} | set(CHOICES)
    unknown_parameters = address.list_unknown_parameters()
    unknown_settings = [name for name in texts if name not in valid_names]
    if not unknown_parameters and not unknown_settings:
        return
    lines = [
        *(f'There is no setting "{name[:60]}" in this version.' for name in unknown_settings),
        *map(address.describe_unknown_parameter, unknown_parameters),
    ]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.warning("  \n".join(map(escape_markdown, lines[:_MAX_MESSAGES])), icon=":material/link_off:")
        valid_texts = frozenset(texts) - frozenset(unknown_settings)
        st.button("Remove", key="launch_leave_out", on_click=address.keep_only, args=(valid_texts,))


def _describe_speed(basis: str) -> str:
    """Write where the speed of an estimate comes from."""
    return "Rough estimate: no finished run to measure from." if basis == TYPICAL_SPEED else f"Assumed speed: {basis}."


def _start_sweep(plan: Plan) -> None:
    """Draw the expected cost of the sweep, and the button that starts it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="launch_cost"):
        basis = sweep.show_cost(plan)
        is_pressed = st.button(
            sweep.make_button_label(plan), type="primary", icon=":material/rocket_launch:", key="start",
            disabled=not messages.may_act(),
        )  # fmt: skip
    st.caption(escape_markdown(f"{_describe_speed(basis)} {describe_files_folder(data.database())}"))
    if is_pressed and messages.may_act():
        sweep.start(plan)


def _start(config: RunConfig | None, name: str, reason: str) -> None:
    """Draw the expected cost of the run, or why it cannot start, and the button that starts it. Both stay in view."""
    note = ""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="launch_cost"):
        if config is not None:
            cost = estimate(data.database(), config)
            note = f"{_describe_speed(cost.basis)} {describe_files_folder(data.database())}"
            disk_help = "With all snapshots of the memory"
            metrics = [
                ("Expected duration", f"≈ {format_duration(cost.seconds)}", cost.basis),
                ("Expected disk use", f"≈ {format_size(cost.disk_bytes)}", disk_help),
                ("Expected memory", f"≤ {format_size(cost.memory_bytes)}", _MEMORY_HELP),
            ]
            if config.train.device != "cpu" and find_gpu() is not None:
                metrics.append(("Expected GPU memory", f"≤ {format_size(cost.gpu_bytes)}", _GPU_MEMORY_HELP))
            for label, value, help_text in metrics:
                st.metric(label, value, help=help_text, width="content")
        if reason:
            st.markdown(f":red[:material/block: {escape_markdown(reason)}]", width="stretch")
        is_disabled = config is None or not messages.may_act()
        is_pressed = st.button(
            "Start", type="primary", icon=":material/rocket_launch:", key="start", disabled=is_disabled
        )
    if note:
        st.caption(escape_markdown(note))
    if is_pressed and config is not None and messages.may_act():
        _launch(config, name)


def _launch(config: RunConfig, name: str) -> None:
    token = st.session_state.setdefault(_TOKEN, secrets.token_hex(8))
    try:
        run_id = launch_run(data.database(), config, name=name or None, launch_token=f"{token}-{config.seed}")
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_TOKEN] = secrets.token_hex(8)
    st.cache_data.clear()
    st.switch_page("../pages/live.py", query_params={RUN.name: run_id})
