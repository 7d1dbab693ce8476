"""The form of the Launch page: task, algorithm and budget first, then all other settings by section, then the start.

The form is a dict, field → text, which the URL contains. A field is a choice of the form, such as the algorithm, or a
setting by its dotted key. The texts are checked before anything is drawn, so that each fault is drawn under its field.

A preset is a named set of defaults for the settings. A sweep is a group of runs that are queued together.
"""

import secrets
from collections.abc import Mapping

import streamlit as st

from app.analysis.format import escape_markdown, format_duration, format_size
from app.analysis.settings import has_effect, name_algo
from app.jobs import launch_request
from app.jobs.estimate import describe_speed, estimate
from app.jobs.gpu import find_gpu
from app.jobs.launch import check_startable, launch_run
from app.jobs.launch_request import ALGO, CHOICES, DEFAULTS, ENV, MAP, NAME, OTHER_ALGOS, PRESET, SEEDS, STEPS, Request
from app.ui import data, messages
from app.ui.launch import fields, success_rule, sweep
from app.ui.page_state import RUN
from app.ui.widgets import config_form
from emtc_core.config.resolve import describe_fields, describe_presets, suggest
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.config.values import format_argument
from emtc_core.envs.registry import IMPORTED_BY_MAP
from emtc_core.errors import EmtcError, Fault, describe_fault
from storage.files import describe_files_folder
from storage.runs.changes import make_run_name

MAP_HINT = (
    "Type the map as module:factory, for example my_game:make. The factory makes your environment. Only the trainer "
    "imports the module."
)
MORE_PRESETS = ("emu_index", "literal_raw", "emu_code", "cds_code")
"""Presets for comparisons with published code, which few runs need."""
_HAS_MORE_PRESETS = "more_presets"
"""Key of the session state: whether `MORE_PRESETS` are drawn."""
_TOKEN = "launch_token"
"""Key of the session state: token of the next start. A second start with the same token creates no run."""
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
    OTHER_ALGOS: "Compare with",
}


def show() -> None:
    """Draw the form. The start button is enabled only while everything is valid.

    A request of several seeds or algorithms is started as a sweep, which needs a plan. Otherwise one run is started.
    """
    texts = fields.read_texts()
    env_maps = data.list_environments()
    maps: dict[str, list[str]] = {}
    for env_map in env_maps:
        maps.setdefault(env_map.env, []).append(env_map.map)
    unavailable = {env_map.env: env_map.reason for env_map in env_maps if not env_map.available}
    request = launch_request.check_request(texts, maps)
    _show_unknown_fields(texts)
    _show_choices(texts, request, maps, unavailable)
    unavailable_reason = unavailable.get(request.choices[ENV], "")
    config: RunConfig | None = None  # stays None if a text is invalid, or if the rule of a success is incomplete
    success_keys = frozenset[str]()
    if not unavailable_reason:
        config, success_keys = success_rule.choose_rule(texts, request, maps)
    faults = dict(request.faults)
    plan = None
    is_sweep = bool(request.other_algos) or len(request.seeds) > 1
    if is_sweep and config is not None and not faults:
        try:
            plan = sweep.make_plan(config, request, texts.get(NAME, ""))
        except EmtcError as exc:
            faults |= launch_request.assign_faults(exc, [OTHER_ALGOS])
    valid_config = config or request.config  # without an incomplete rule of a success, this machine can be checked
    if valid_config is not None and not unavailable_reason:
        faults |= _find_start_faults(valid_config)
    elif not faults and not request.choices[MAP]:
        st.info(MAP_HINT, icon=":material/edit:")
    _show_settings(texts, request, faults, excluded=success_keys)
    with st.container(key="launch_bar"):
        _show_faults(faults)
        if plan is not None and not faults:
            sweep.show_start(plan)
        else:
            reason = _explain_disabled_start(request, config, faults, unavailable_reason)
            _show_start(config if not faults else None, texts.get(NAME, ""), reason)


def _explain_disabled_start(
    request: Request, config: RunConfig | None, faults: Mapping[str, Fault], unavailable_reason: str
) -> str:
    """Write why *Start* is disabled; empty if it is enabled, or if the listed faults already explain it."""
    if (reason := messages.get_read_only_reason()) is not None:
        return reason
    if unavailable_reason:
        return f"{request.choices[ENV]} is not available here: {unavailable_reason}"
    if config is not None or faults:
        return ""
    if not request.choices[MAP]:
        return "Type a map."
    return "Enter the episode return from which an episode is a success."


def _show_choices(
    texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]], unavailable: Mapping[str, str]
) -> None:
    """Draw one row each for task, algorithm and budget, then the presets."""
    left, right = st.columns(2)
    with left:
        fields.show_choice(
            "Environment", ENV, list(maps), request, key="env", help_text="Simulator or game",
            on_change=lambda env: fields.set_text(MAP, None),  # a map belongs to its environment
            format_option=lambda env: f"{env} · not installed" if env in unavailable else env,
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
            placeholder=_make_automatic_name(request),
        )  # fmt: skip
    _show_presets(request)


def _make_automatic_name(request: Request) -> str:
    """Make the name that the run gets if the field is empty. A sweep makes the names of its runs itself."""
    if request.config is None or request.other_algos or len(request.seeds) > 1:
        return "Automatic if empty"
    return make_run_name(request.config.model_dump(include={"algo", "seed", "env"}))


def _show_presets(request: Request) -> None:
    """Draw the presets as cards with one sentence each; the page's style sheet draws the cards.

    Presets for comparisons with published code are drawn after *More presets* is switched on, or if one is chosen.
    """
    presets = describe_presets()
    if not st.session_state.get(_HAS_MORE_PRESETS) and request.choices[PRESET] not in MORE_PRESETS:
        presets = {name: text for name, text in presets.items() if name not in MORE_PRESETS}
    value = None if PRESET in request.faults else request.choices[PRESET]
    index = None if value is None else 0  # None: nothing is selected; otherwise `bind` sets the value
    first_sentences = [text.split(". ")[0].rstrip(".") + "." for text in presets.values()]
    st.radio(
        "Preset", list(presets), index=index, horizontal=True, width="stretch",
        captions=[escape_markdown(sentence) for sentence in first_sentences],
        help="Gives the default of every setting below. *Learn › Method* compares the presets.",
        **fields.bind(PRESET, "preset", value, default=DEFAULTS[PRESET]),
    )  # fmt: skip
    fields.show_fault(request.faults, PRESET)
    is_needed = request.choices[PRESET] in MORE_PRESETS
    st.toggle("More presets", key=_HAS_MORE_PRESETS, help=", ".join(MORE_PRESETS), disabled=is_needed)


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
    # task, algorithm, preset, seed and length; success rule
    keys_drawn_elsewhere = launch_request.CHOICE_SETTINGS | excluded
    values = {**request.defaults, **texts, "algo": request.choices[ALGO], "env.name": request.choices[ENV]}
    settings = [
        info for info in describe_fields() if info.key not in keys_drawn_elsewhere and has_effect(info.key, values)
    ]
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
        icon = None
        if has_fault:
            icon = ":material/error:"
        elif is_changed:
            icon = ":material/tune:"
        # A search changes the key. For a new key, Streamlit applies `expanded` again, so the section opens.
        key = f"section-{section}-{'found' if search else 'all'}"
        with st.expander(title, expanded=has_fault or bool(search), icon=icon, key=key):
            fields.show_settings(section_settings, texts, request, faults, unused)


def _show_changes(texts: Mapping[str, str], keys_on_form: set[str], request: Request) -> None:
    """Draw which settings differ from the preset, a button that resets them, and those that are not on the form."""
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
    summary = "The changed settings do not exist in this version"
    if changes:
        head = "1 change from preset" if len(changes) == 1 else f"{len(changes)} changes from preset"
        summary = f"{head} (preset's value in parentheses): {', '.join(changes)}"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"{summary}.", width="stretch")
        st.button(
            "Reset to preset", icon=":material/undo:", key="launch_reset",
            on_click=fields.keep_only, args=(frozenset(CHOICES),),
        )  # fmt: skip
    without_effect = [key for key in changed if key not in keys_on_form and key in request.defaults]
    if without_effect:
        values = escape_markdown(", ".join(f"{key} = {texts[key]}" for key in without_effect))
        algo = escape_markdown(name_algo(request.choices[ALGO]))
        st.caption(f":material/visibility_off: Stored in the run, but without effect for {algo}: {values}.")


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
            note = f"{describe_speed(cost.speed_source)} {describe_files_folder(data.database())}"
            disk_help = "With all snapshots of the memory"
            metrics = [
                ("Expected duration", f"≈ {format_duration(cost.seconds)}", cost.speed_source),
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
    launch_token = f"{token}-{config.seed}"  # a double click starts one run; another seed is another run
    try:
        run_id = launch_run(data.database(), config, name=name or None, launch_token=launch_token)
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_TOKEN] = secrets.token_hex(8)
    st.cache_data.clear()
    st.switch_page("../pages/live.py", query_params={RUN.name: run_id})
