"""The Launch page's body: the choices that matter first, all other settings by section, then cost and start.

The form is texts in the address; they are checked before anything is drawn, so that each fault stands under its field.
"""

import secrets
from collections.abc import Callable, Mapping

import streamlit as st

from app.analysis.format import escape_markdown, format_count, format_duration, format_size
from app.analysis.settings import name_algo
from app.jobs import launch_request
from app.jobs.launch import check_startable, estimate, find_obs_warning, find_success_warning, launch_run
from app.jobs.launch_request import ALGO, ALSO, CHOICES, DEFAULTS, ENV, MAP, NAME, PRESET, SEEDS, STEPS, Request
from app.jobs.sweeps.plan import Plan
from app.ui import data, messages, state
from app.ui.in_url import Bound
from app.ui.launch import address, choices
from app.ui.widgets import config_form
from emtc_core.config.plugin_settings import find_owner
from emtc_core.config.resolve import FieldInfo, Value, describe_fields, describe_presets
from emtc_core.config.run import RunConfig, list_algos, split_algo
from emtc_core.envs.registry import ADAPTERS, IMPORTED_BY_MAP
from emtc_core.envs.trust import VARIABLE
from emtc_core.envs.zoo.examples import EXAMPLES, EXTRA
from emtc_core.errors import EmtcError, Fault, describe_fault
from emtc_core.install import get_install_command
from storage.files.places import describe_place

_TOKEN = "launch_token"
TYPE_A_MAP = (
    "Type the map: module:factory names what makes your environment, as my_game:make. It is imported only if "
    f"{VARIABLE} of this machine lists the module; it is tried for some episodes before anything starts."
)
_TOLD_AT_ONCE = 4
_ABOUT_MEMORY = "At its end: the trainer itself, the replayed episodes and the memory's nodes. Run draws what it took."
_OWN = ""
_GAMES = f"Games of PettingZoo and MPE2 that are wrapped already, of those installed here: {get_install_command(EXTRA)}"
_LABELS = {
    STEPS: "Training length",
    SEEDS: "Seeds",
    MAP: "Map",
    ENV: "Environment",
    ALGO: "Algorithm",
    ALSO: "And also",
}


def show() -> None:
    """Draw the form; the start button is live only while everything is valid."""
    texts = address.read()
    rows = data.env_list()
    maps: dict[str, list[str]] = {}
    for row in rows:
        maps.setdefault(row.env, []).append(row.map)
    request = launch_request.check_request(texts, maps)
    _say_unknown(texts)
    _choices(texts, request, maps)
    obstacle = next((row.reason for row in rows if row.env == request.choices[ENV] and not row.available), "")
    config, ruled = (None, frozenset[str]()) if obstacle else choices.ask_success(texts, request, maps)
    faults, planned = dict(request.faults), None
    if config is not None and request.other_algos and not faults:
        try:
            planned = choices.plan(config, request, texts.get(NAME, ""))
        except EmtcError as exc:
            faults |= launch_request.place_faults(exc, [ALSO])
    if not obstacle and (asked := config or request.config):
        faults |= _refusals(asked)
    elif not faults and not request.choices[MAP]:
        st.info(TYPE_A_MAP, icon=":material/edit:")
    _settings(texts, request, faults, without=ruled)
    if obstacle:
        st.warning(escape_markdown(obstacle[0].upper() + obstacle[1:]), icon=":material/block:")
    if config is not None and not faults:
        _doubts(config)
    with st.container(key="launch_bar"):
        _say_faults(faults)
        if planned is not None and not faults:
            _start_several(planned)
        else:
            _start(config if not faults else None, request, texts.get(NAME, ""))


def _choices(texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]]) -> None:
    left, middle, right = st.columns(3)
    with left:
        _preset(request)
        _select(
            "Algorithm", ALGO, list_algos(), request, key="algo", show=name_algo,
            about="Method and value system; the paper's own is EMTC(QPLEX), which commands call emtc-qplex.",
        )  # fmt: skip
        choices.ask(request)
    with middle:
        _select("Environment", ENV, list(maps), request, key="env", about="The game.", then=_forget_map)
        _map(texts, request, maps)
        address.mark(request.faults, MAP)
    with right:
        _text(
            "Seeds", SEEDS, texts, DEFAULTS[SEEDS], request,
            "One run each: 1, or 1,2,5, or 1-5. A seed decides every random number of its run.",
        )  # fmt: skip
        _text("Name", NAME, texts, "", request, "Shown in lists.", placeholder="made from the choices")
    left, _, _ = st.columns(3)
    with left:
        info = next(info for info in describe_fields() if info.key == "train.t_max")
        usual = launch_request.write_text(request.default_steps)
        about = f"{config_form.help_of(info)}  \nWritten as 40000, 40k or 1.5M."
        _text("Training length [env steps]", STEPS, texts, usual, request, about)


def _preset(request: Request) -> None:
    presets = describe_presets()
    told = "\n".join(f"- **{escape_markdown(name)}**: {escape_markdown(text)}" for name, text in presets.items())
    about = f"Where the defaults of all settings below come from.\n{told}"
    _select("Preset", PRESET, list(presets), request, key="preset", about=about)
    if PRESET not in request.faults:
        st.caption(escape_markdown(presets[request.choices[PRESET]]))


def _select(
    label: str,
    name: str,
    options: list[str],
    request: Request,
    *,
    key: str,
    about: str,
    then: Callable[[str], None] | None = None,
    show: Callable[[str], str] = str,
) -> None:
    """Draw a choice; what the address asks for and is not there leaves it open, with the reason under it."""
    wrong = name in request.faults
    shown = None if wrong else request.choices[name]
    bound = address.bind(name, key, shown, usual=DEFAULTS.get(name, options[0]), then=then)
    st.selectbox(label, options, index=None if wrong else 0, **bound, help=about, format_func=show)
    if name != MAP:
        address.mark(request.faults, name)


def _text(
    label: str, name: str, texts: Mapping[str, str], usual: str, request: Request, about: str, placeholder: str = ""
) -> None:
    bound = address.bind(name, _KEYS.get(name, name), texts.get(name, usual), usual=usual)
    st.text_input(label, **bound, help=about, placeholder=placeholder or usual, max_chars=launch_request.MAX_CHARACTERS)
    address.mark(request.faults, name)


_KEYS = {NAME: "launch_name"}


def _forget_map(env: str) -> None:
    """A map belongs to its environment."""
    address.put(MAP, None)


def _map(texts: Mapping[str, str], request: Request, maps: Mapping[str, list[str]]) -> None:
    env = request.choices[ENV]
    if env not in IMPORTED_BY_MAP:
        _select("Map", MAP, maps[env], request, key=f"map-{env}", about="Map or scenario.")
        return
    typed = texts.get(MAP, "")
    games = [_OWN, *(map for map in maps[env] if map in EXAMPLES)]
    if len(games) > 1:
        bound = address.bind(MAP, f"game-{env}", typed if typed in games else _OWN)
        st.selectbox("Game", games, format_func=lambda game: game or "my own", **bound, help=_GAMES)
        if typed and typed in games:
            st.caption(escape_markdown(f"{EXAMPLES[typed].description[:1].upper()}{EXAMPLES[typed].description[1:]}."))
            return
    st.text_input(
        "Map", **address.bind(MAP, f"map-{env}", typed), placeholder="my_game:make",
        max_chars=launch_request.MAX_CHARACTERS,
        help=f"Import path of your environment, as module:factory. This machine must list the module in {VARIABLE}.",
    )  # fmt: skip


def _settings(
    texts: Mapping[str, str], request: Request, faults: Mapping[str, Fault], *, without: frozenset[str]
) -> None:
    fields = [info for info in describe_fields() if info.key not in launch_request.IDENTITY | without]
    gate = texts.get("gate.type") or str(request.defaults.get("gate.type"))
    shown = [info for info in fields if _is_read(info.key, request, gate)]
    st.markdown("##### All settings")
    _tell_changes(texts, {info.key for info in shown} | without, request)
    for section in dict.fromkeys(info.key.partition(".")[0] for info in shown):
        own = [info for info in shown if info.key.partition(".")[0] == section]
        wrong = any(info.key in faults for info in own)
        changed = sum(info.key in texts for info in own)
        title = config_form.SECTION_TITLES.get(section, section.upper())
        icon = ":material/error:" if wrong else ":material/tune:" if changed else None
        with st.expander(title, expanded=wrong, icon=icon):
            config_form.show_section(own, request.defaults, texts, _bind, lambda key: address.mark(dict(faults), key))


def _bind(info: FieldInfo, shown: object, usual: str, write: Callable[[object], str]) -> Bound:
    return address.bind(info.key, f"set-{info.key}", shown, usual=usual, write=write)


def _tell_changes(texts: Mapping[str, str], shown: set[str], request: Request) -> None:
    """Which settings are not the preset's, those among them that this form does not show, and the way back."""
    own = [key for key in texts if key not in CHOICES]
    if not own:
        st.caption("All of them are the preset's. Closed sections keep its values.")
        return
    hidden = [key for key in own if key not in shown]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(f"{_list_changes(own, texts, request.defaults)}.", width="stretch")
        st.button(
            "Take the preset's values", icon=":material/undo:", key="launch_reset",
            on_click=address.keep_only, args=(frozenset(CHOICES),),
        )  # fmt: skip
    known = [key for key in hidden if key in request.defaults]
    if known:
        named = escape_markdown(", ".join(f"{key} = {texts[key]}" for key in known))
        algo = escape_markdown(name_algo(request.choices[ALGO]))
        st.caption(
            f":material/visibility_off: Carried to the run, and not on this form, for {algo} reads none of it: {named}."
        )


def _list_changes(own: list[str], texts: Mapping[str, str], defaults: Mapping[str, Value]) -> str:
    told = [
        f"`{key}` = {escape_markdown(texts[key] or 'not set')} "
        f"({escape_markdown(launch_request.write_text(defaults[key]) or 'not set')})"
        for key in own
        if key in defaults
    ]
    head = "1 setting is not the preset's" if len(told) == 1 else f"{len(told)} settings are not the preset's"
    return f"{head} (whose value stands in brackets): {', '.join(told)}" if told else "Nothing here is known"


def _is_read(key: str, request: Request, gate: str) -> bool:
    """Whether this algorithm in this environment, with this gate, reads a setting; any other would have no effect."""
    section, _, rest = key.partition(".")
    owner = find_owner(key)
    if owner and section != "env":
        used = {"gate": gate, "mixer": split_algo(request.choices[ALGO])[1]}[section]
        return owner[1] == used and (section == "mixer" or section in _relevant(request.choices[ALGO]))
    if section == "env":
        env = request.choices[ENV]
        return rest.partition(".")[0] in ((env,) if env in ADAPTERS else (env, "pettingzoo"))
    return section in _relevant(request.choices[ALGO])


def _relevant(algo: str) -> set[str]:
    """The sections that this algorithm reads."""
    method, backbone = split_algo(algo)
    sections = {"train", "eval", "record", "checkpoint", backbone}
    if method != "none":
        sections |= {"memory", "embed", "gate", "incentive"}
    if method == "emc":
        sections |= {"curiosity", "ec"}
    if backbone in ("cds", "dmix"):
        sections |= {"qplex", "qmix"}
    return sections


def _refusals(config: RunConfig) -> dict[str, Fault]:
    """Why this machine cannot run it, by the setting that is to blame where there is one."""
    try:
        check_startable(config)
    except EmtcError as exc:
        return launch_request.place_faults(exc)
    return {}


def _say_faults(faults: Mapping[str, Fault]) -> None:
    """Gather what is wrong beside the button, for its field may be out of sight."""
    told = []
    for name, fault in faults.items():
        label = _LABELS.get(name)
        told.append(
            escape_markdown(
                f"{label}: {launch_request.describe_field_fault(name, fault)}" if label else describe_fault(fault)
            )
        )
    if told:
        more = f"  \nAnd {len(told) - _TOLD_AT_ONCE} more." if len(told) > _TOLD_AT_ONCE else ""
        st.error("  \n".join(told[:_TOLD_AT_ONCE]) + more, icon=":material/error:")


def _describe_lost(name: str) -> str:
    return f'There is no setting "{name[:60]}" in this version.'


def _say_unknown(texts: Mapping[str, str]) -> None:
    """What the address asks for and there is not, with a way to go on without it."""
    known = {info.key for info in describe_fields()} | set(CHOICES)
    strangers, lost = address.strangers(), [name for name in texts if name not in known]
    if not strangers and not lost:
        return
    told = [*map(_describe_lost, lost), *map(address.describe_stranger, strangers)]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.warning("  \n".join(map(escape_markdown, told[:_TOLD_AT_ONCE])), icon=":material/link_off:")
        kept = frozenset(texts) - frozenset(lost)
        st.button("Leave it out", key="launch_leave_out", on_click=address.keep_only, args=(kept,))


def _doubts(config: RunConfig) -> None:
    """Warn of what the trial of a stranger's environment showed: no success, or nothing to observe."""
    with messages.guarded():
        if doubt := find_success_warning(config):
            st.warning(escape_markdown(doubt), icon=":material/flag:")
        if doubt := find_obs_warning(config):
            st.warning(escape_markdown(doubt), icon=":material/visibility_off:")


def _start_several(planned: Plan) -> None:
    """Draw what the sweep will cost, and the button beside it."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="launch_cost"):
        basis = choices.tell_cost(planned)
        off = not messages.may_act()
        pressed = st.button(
            choices.label(planned), type="primary", icon=":material/rocket_launch:", key="start", disabled=off
        )
    st.caption(escape_markdown(f"The speed behind it is {basis}. {describe_place(data.database())}"))
    if pressed and messages.may_act():
        choices.start(planned)


def _start(config: RunConfig | None, request: Request, name: str) -> None:
    """Draw what the runs will cost, and the button beside it; both stay in view."""
    seeds = request.seeds
    note = ""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="launch_cost"):
        if config is not None:
            expected = estimate(data.database(), config)
            note = f"The speed behind it is {expected.basis}. {describe_place(data.database())}"
            for label, value, about in (
                ("Expected duration, each run", f"≈ {format_duration(expected.seconds)}", expected.basis),
                (
                    "Expected disk use, each run",
                    f"≈ {format_size(expected.disk_bytes)}",
                    "With every snapshot of the memory",
                ),
                ("Expected memory, each run", f"≤ {format_size(expected.memory_bytes)}", _ABOUT_MEMORY),
                ("Runs", format_count(len(seeds)), "They start together and share this machine."),
            ):
                st.metric(label, value, help=about, width="content")
        label = "Start" if len(seeds) <= 1 or config is None else f"Start {len(seeds)} runs"
        off = config is None or not messages.may_act()
        pressed = st.button(label, type="primary", icon=":material/rocket_launch:", key="start", disabled=off)
    if note:
        st.caption(escape_markdown(note))
    if pressed and config is not None and messages.may_act():
        _launch(config, seeds, name)


def _launch(config: RunConfig, seeds: tuple[int, ...], name: str) -> None:
    token = st.session_state.setdefault(_TOKEN, secrets.token_hex(8))
    started: list[str] = []
    try:
        for seed in seeds:
            titled = f"{name} (seed {seed})" if name and len(seeds) > 1 else name or None
            seeded = config.model_copy(update={"seed": seed})
            started.append(launch_run(data.database(), seeded, name=titled, launch_token=f"{token}-{seed}"))
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_TOKEN] = secrets.token_hex(8)
    st.cache_data.clear()
    st.switch_page("../pages/live.py", query_params={state.RUN: started[0]})
