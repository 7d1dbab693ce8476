"""The form of the Launch page: task, algorithm and budget first, then all other settings by section, then the start.

The form is a map from field to text, which is in the URL. The texts are checked before anything is drawn, so each
fault is drawn under its field.
"""

import secrets
from collections.abc import Collection, Mapping

import streamlit as st

from app.analysis.format import escape_markdown, format_duration, format_size
from app.analysis.settings import list_sections, name_algo
from app.jobs import launch_request
from app.jobs.gpu import find_gpu
from app.jobs.launch import check_startable, describe_speed, estimate, launch_run
from app.jobs.launch_request import ALGO, ALSO, CHOICES, DEFAULTS, ENV, MAP, NAME, PRESET, SEEDS, STEPS, Request
from app.ui import data, messages, view
from app.ui.launch import fields, success_rule, sweep
from app.ui.page_state import RUN
from app.ui.widgets import config_form
from emtc_core.config.plugin_settings import PLUGIN, PLUGIN_SETTINGS, find_owner, split_names
from emtc_core.config.resolve import describe_fields, describe_presets, suggest
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


def show() -> None:
    """Draw the form. The start button is enabled only while everything is valid."""
    texts = fields.read_texts()
    env_maps = data.list_environments()
    maps: dict[str, list[str]] = {}
    for env_map in env_maps:
        maps.setdefault(env_map.env, []).append(env_map.map)
    obstacles = {env_map.env: env_map.reason for env_map in env_maps if not env_map.available}
    request = launch_request.check_request(texts, maps)
    _show_unknown_fields(texts)
    _show_choices(texts, request, maps, obstacles)
    obstacle = obstacles.get(request.choices[ENV], "")
    config, rule_keys = None, frozenset[str]()
    if not obstacle:
        config, rule_keys = success_rule.choose(texts, request, maps)
    faults = dict(request.faults)
    plan = None
    if config is not None and (request.other_algos or len(request.seeds) > 1) and not faults:
        try:
            plan = sweep.make_plan(config, request, texts.get(NAME, ""))
        except EmtcError as exc:
            faults |= launch_request.assign_faults(exc, [ALSO])
    if not obstacle and (checked_config := config or request.config):
        faults |= _find_start_faults(checked_config)
    elif not faults and not request.choices[MAP]:
        st.info(TYPE_A_MAP, icon=":material/edit:")
    _show_settings(texts, request, faults, excluded=rule_keys)
    with st.container(key="launch_bar"):
        _show_faults(faults)
        if plan is not None and not faults:
            sweep.show_start(plan)
        else:
            reason = _explain_disabled_start(request, config, faults, obstacle)
            _show_start(config if not faults else None, texts.get(NAME, ""), reason)


def _explain_disabled_start(
    request: Request, config: RunConfig | None, faults: Mapping[str, Fault], obstacle: str
) -> str:
    """Write why *Start* is disabled; empty if it is enabled, and if the faults above it are the reason."""
    if not messages.may_act():
        return messages.READ_ONLY if view.get_bundle() is None else "The runs of a bundle are read-only."
    if obstacle:
        return f"{request.choices[ENV]} is not available here: {obstacle}"
    if config is not None or faults:
        return ""
    if not request.choices[MAP]:
        return "Type a map."
    return "Type the return that counts as a success."


def _show_choices(
    texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]], obstacles: Mapping[str, str]
) -> None:
    """Draw one row each for task, algorithm and budget, then the presets."""
    left, right = st.columns(2)
    with left:
        fields.show_choice(
            "Environment", ENV, list(maps), request, key="env", help_text="Simulator or game",
            on_text=lambda env: fields.set_text(MAP, None),  # a map belongs to its environment
            format_option=lambda env: f"{env} · not installed" if env in obstacles else env,
        )  # fmt: skip
    with right:
        _show_map(texts, request, maps)
    left, right = st.columns(2)
    with left:
        fields.show_choice(
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
        fields.show_text(
            "Training length [env steps]", STEPS, texts.get(STEPS, default), request, key=STEPS, default=default,
            help_text=f"{config_form.write_help(info)}  \nFormat: 40000, 40k or 1.5M.",
        )  # fmt: skip
    with middle:
        default = DEFAULTS[SEEDS]
        fields.show_text(
            "Seeds", SEEDS, texts.get(SEEDS, default), request, key=SEEDS, default=default,
            help_text="One run for each seed: 1, or 1,2,5, or 1-5. A seed determines all random numbers of its run.",
        )  # fmt: skip
    with right:
        fields.show_text(
            "Name", NAME, texts.get(NAME, ""), request, key="launch_name", help_text="Shown in lists.",
            placeholder="Auto-generated if empty",
        )  # fmt: skip
    _show_presets(request)


def _show_presets(request: Request) -> None:
    """Draw the presets as cards with one sentence each; the page's style sheet draws the cards."""
    presets = describe_presets()
    value = None if PRESET in request.faults else request.choices[PRESET]
    st.radio(
        "Preset", list(presets), index=None if value is None else 0, horizontal=True, width="stretch",
        captions=[escape_markdown(_take_first_sentence(text)) for text in presets.values()],
        help="Gives the default of every setting below. *Method* compares the presets.",
        **fields.bind(PRESET, "preset", value, default=DEFAULTS[PRESET]),
    )  # fmt: skip
    fields.show_fault(request.faults, PRESET)


def _take_first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."


def _show_map(texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]]) -> None:
    env = request.choices[ENV]
    key = f"map-{env}"
    if env in IMPORTED_BY_MAP:
        fields.show_text(
            "Map", MAP, texts.get(MAP, ""), request, key=key, placeholder="my_game:make",
            help_text="Import path of your environment, as module:factory.",
        )  # fmt: skip
    else:
        fields.show_choice("Map", MAP, maps[env], request, key=key, help_text="Map or scenario.")


def _show_settings(
    texts: Mapping[str, str], request: Request, faults: Mapping[str, Fault], *, excluded: frozenset[str]
) -> None:
    """Draw the settings that have an effect for this request, by section; `excluded` are drawn elsewhere."""
    settings = [info for info in describe_fields() if info.key not in launch_request.IDENTITY | excluded]
    plugin_texts = [texts.get(key) or str(request.defaults.get(key, "")) for key in PLUGIN_SETTINGS]
    named_plugins = [name for text in plugin_texts for name in split_names(text)]
    settings = [info for info in settings if _has_effect(info.key, request, named_plugins)]
    unused = launch_request.find_unused_settings(texts, request)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.markdown("##### All settings", width="content")
        search = st.text_input(
            "Search settings", type="search", key="launch_search", placeholder="Search settings: tau, buffer, seed",
            label_visibility="collapsed", width=340,
        )  # fmt: skip
    _show_changes(texts, {info.key for info in settings} | excluded, request)
    if search:
        settings = [info for info in settings if config_form.matches(info, search)]
        if not settings:
            st.caption("No setting matches.")
    for section in dict.fromkeys(info.key.partition(".")[0] for info in settings):
        section_settings = [info for info in settings if info.key.partition(".")[0] == section]
        has_fault = any(info.key in faults for info in section_settings)
        is_changed = any(info.key in texts for info in section_settings)
        title = config_form.SECTION_TITLES.get(section, section.upper())
        icon = ":material/error:" if has_fault else ":material/tune:" if is_changed else None
        # The key opens the section when a search starts.
        key = f"section-{section}-{'found' if search else 'all'}"
        with st.expander(title, expanded=has_fault or bool(search), icon=icon, key=key):
            fields.show_settings(section_settings, texts, request, faults, unused)


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
            on_click=fields.keep_only, args=(frozenset(CHOICES),),
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
        return launch_request.assign_faults(exc)
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
    unknown_parameters = fields.list_unknown_parameters()
    unknown_settings = [name for name in texts if name not in valid_names]
    if not unknown_parameters and not unknown_settings:
        return
    lines = [
        *(f'There is no setting "{name[:60]}" in this version.' for name in unknown_settings),
        *map(_describe_unknown_parameter, unknown_parameters),
    ]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.warning("  \n".join(map(escape_markdown, lines[:_MAX_MESSAGES])), icon=":material/link_off:")
        valid_texts = frozenset(texts) - frozenset(unknown_settings)
        st.button("Remove", key="launch_leave_out", on_click=fields.keep_only, args=(valid_texts,))


def _describe_unknown_parameter(name: str) -> str:
    sentence = f'The form does not have the URL parameter "{name[:60]}".'
    return f"{sentence} {suggest(name, CHOICES)}".rstrip()


def _show_start(config: RunConfig | None, name: str, reason: str) -> None:
    """Draw the expected cost of the run, or why it cannot start, and the button that starts it. Both stay in view."""
    note = ""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="launch_cost"):
        if config is not None:
            cost = estimate(data.database(), config)
            note = f"{describe_speed(cost.basis)} {describe_files_folder(data.database())}"
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
