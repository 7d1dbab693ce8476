"""The Launch page's body: the choices that matter first, all other settings by section, then cost and start.

What counts as a success, asked for where nothing in the environment ever says so.
"""

import math
import secrets

import streamlit as st

from app.analysis.format import count, duration, escape_markdown, number, size
from app.jobs.env_probe import Probe
from app.jobs.launch import check_startable, doubt_observations, doubt_success, estimate, find_unruled, launch_run
from app.ui import data, messages, state
from app.ui.widgets import config_form
from emtc_core.config.resolve import describe_fields, describe_presets, flatten, resolve
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.envs.registry import IMPORTED_BY_MAP
from emtc_core.envs.trust import VARIABLE
from emtc_core.envs.zoo.examples import EXAMPLES, EXTRA
from emtc_core.errors import ConfigError, EmtcError
from emtc_core.install import how_to_install
from storage.files.places import describe_place

SUCCESS, THRESHOLD = "memory.success", "memory.success_threshold"
KEYS = frozenset({SUCCESS, THRESHOLD})
_RULES = {"return_threshold": "an episode return of at least", "flag": "only what the environment says"}


def find(config: RunConfig) -> Probe | None:
    """What random play showed if a rule is wanted; what cannot be tried is refused further down, in its words."""
    try:
        with st.spinner("Trying the environment …"):
            return find_unruled(config)
    except EmtcError:
        return None


def ask(config: RunConfig, seen: Probe) -> dict[str, object] | None:
    """Draw the question and return the settings that answer it, or None while it is open."""
    map = config.env.map
    with st.container(border=True, key="success-rule"):
        st.markdown("**What counts as a success?**")
        st.caption(
            f"In random play {escape_markdown(map)} never said who won, and without a success there is no incentive "
            f"(ρ stays 0). {escape_markdown(seen.random_play.capitalize())} [env return]."
        )
        left, right = st.columns(2, vertical_alignment="bottom")
        rule = left.radio(
            "Success", list(_RULES), format_func=_RULES.__getitem__, key=f"success-{map}", horizontal=True,
            help=f"`--set {SUCCESS}=…`",
        )  # fmt: skip
        if rule == "flag":
            return {SUCCESS: "flag"}
        known = number(config.memory.success_threshold, 6) if config.memory.success == "return_threshold" else ""
        typed = right.text_input(
            "Success threshold [env return]", value=known, key=f"threshold-{map}-{known}",
            placeholder="type a return", help="Undiscounted sum of the team's rewards over an episode, in the "
            f"environment's own unit, before train.reward_scale.  \n`--set {THRESHOLD}=…`",
        )  # fmt: skip
        return _read(typed.strip())


def _read(typed: str) -> dict[str, object] | None:
    if not typed:
        st.info("Type the return from which on an episode is a success.", icon=":material/edit:")
        return None
    try:
        threshold = float(typed)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        st.error(f'{THRESHOLD} must be a number, got "{escape_markdown(typed[:40])}".', icon=":material/error:")
        return None
    return {SUCCESS: "return_threshold", THRESHOLD: threshold}


_FIRST = frozenset({"algo", "seed", "preset", "env.name", "env.map", "train.t_max"})
_USUAL_PRESET = "demo"
_TOKEN = "launch_token"
MOST_SEEDS = 8
TYPE_A_MAP = (
    "Type the map: module:factory names what makes your environment, as my_game:make. It is imported only if "
    f"{VARIABLE} of this machine lists the module; it is tried for some episodes before anything starts."
)
_OWN = ""
_GAMES = f"Games of PettingZoo and MPE2 that are wrapped already, of those installed here: {how_to_install(EXTRA)}"


def show() -> None:
    """Draw the form; the start button is live only while everything is valid."""
    choice = _choices()
    if choice is None:
        return
    usual = _resolve(choice, {})
    if usual is None:
        return
    steps: dict[str, object] = {"train.t_max": _training_length(usual)}
    base = _resolve(choice, steps)
    if base is None:
        return
    unruled = find(base)
    rule = ask(base, unruled) if unruled else {}
    overrides = steps | _sections(base, without=KEYS if unruled else frozenset()) | (rule or {})
    seeds = _seeds()
    config = _resolve(choice, overrides)
    if config is None or seeds is None or not _available(config) or rule is None:
        st.button("Start", type="primary", disabled=True, key="start_invalid")
        return
    _doubts(config)
    _cost(config, seeds)
    _start(config, seeds)


def _choices() -> dict[str, object] | None:
    rows = data.env_list()
    envs = list(dict.fromkeys(row.env for row in rows))
    left, middle, right = st.columns(3)
    with left:
        preset = _preset()
        algo = st.selectbox(
            "Algorithm", list_algos(), key="algo", bind="query-params",
            help="Method and value system; the paper's own is emtc-qplex.",
        )  # fmt: skip
    with middle:
        env = st.selectbox("Environment", envs, key="env", bind="query-params", help="The game.")
        map_name = _map(env, [row.map for row in rows if row.env == env])
    obstacle = next((r.reason for r in rows if r.env == env and not r.available), None)
    with right:
        st.text_input(
            "Seeds", value="1", key="seeds",
            help="One run each: 1, or 1,2,5, or 1-5. A seed decides every random number of its run.",
        )  # fmt: skip
        name = st.text_input("Name", value="", key="launch_name", placeholder="made from the choices", max_chars=80)
        st.session_state["launch_name_kept"] = name
    if obstacle:
        st.warning(escape_markdown(obstacle[0].upper() + obstacle[1:]), icon=":material/block:")
        return None
    if not map_name:
        st.info(TYPE_A_MAP, icon=":material/edit:")
        return None
    return {"env": env, "map": map_name, "algo": algo, "preset": preset}


def _preset() -> str:
    presets = describe_presets()
    told = "\n".join(f"- **{escape_markdown(name)}**: {escape_markdown(text)}" for name, text in presets.items())
    chosen = st.selectbox(
        "Preset", list(presets), index=list(presets).index(_USUAL_PRESET), key="preset", bind="query-params",
        help=f"Where the defaults of all settings below come from.\n{told}",
    )  # fmt: skip
    st.caption(escape_markdown(presets[chosen]))
    return chosen


def _map(env: str, maps: list[str]) -> str:
    if env not in IMPORTED_BY_MAP:
        return st.selectbox("Map", maps, key=f"map-{env}", help="Map or scenario.")
    games = [_OWN, *(map for map in maps if map in EXAMPLES)]
    if len(games) > 1:
        game = st.selectbox(
            "Game", games, format_func=lambda game: game or "my own", key=f"game-{env}", help=_GAMES
        )  # fmt: skip
        if game != _OWN:
            st.caption(escape_markdown(f"{EXAMPLES[game].about[:1].upper()}{EXAMPLES[game].about[1:]}."))
            return game
    typed = st.text_input(
        "Map", value="", key=f"map-{env}", placeholder="my_game:make", max_chars=300,
        help=f"Import path of your environment, as module:factory. This machine must list the module in {VARIABLE}.",
    )  # fmt: skip
    return typed.strip()


def _resolve(choice: dict[str, object], overrides: dict[str, object]) -> RunConfig | None:
    try:
        return resolve(**choice, overrides=overrides)  # type: ignore[arg-type]  # the widgets hold exactly these
    except ConfigError as exc:
        for sentence in str(exc).splitlines():
            st.error(escape_markdown(sentence), icon=":material/error:")
        return None


def _training_length(usual: RunConfig) -> int:
    """Ask for the training length; defaults that depend on it, as the gate's decay does, follow it."""
    info = next(info for info in describe_fields() if info.key == "train.t_max")
    left, _, _ = st.columns(3)
    with left:
        return st.number_input(
            "Training length [env steps]",
            min_value=1,
            value=usual.train.t_max,
            step=1000,
            key=f"steps-{usual.train.t_max}",
            help=config_form.help_of(info),
        )


def _sections(base: RunConfig, *, without: frozenset[str]) -> dict[str, object]:
    defaults = flatten(base)
    overrides: dict[str, object] = {}
    fields = [info for info in describe_fields() if info.key not in _FIRST | without]
    st.markdown("##### All settings")
    st.caption("Closed sections keep the preset's values. Every setting says what it means in its help.")
    relevant = _relevant(base)
    for section in dict.fromkeys(info.key.partition(".")[0] for info in fields):
        if section not in relevant:
            continue
        with st.expander(config_form.SECTION_TITLES.get(section, section.upper())):
            own = [info for info in fields if info.key.partition(".")[0] == section]
            overrides |= config_form.show_section(own, defaults)
    return overrides


def _relevant(base: RunConfig) -> set[str]:
    """The sections that this algorithm reads; the others would have no effect."""
    sections = {"train", "eval", "record", "checkpoint", "env", base.backbone}
    if base.uses_memory:
        sections |= {"memory", "embed", "gate", "incentive"}
    if base.algo == "emc":
        sections |= {"curiosity", "ec"}
    if base.backbone in ("cds", "dmix"):
        sections |= {"qplex", "qmix"}
    return sections


def _seeds() -> list[int] | None:
    try:
        return parse_seeds(str(st.session_state.get("seeds", "1")))
    except ConfigError as exc:
        st.error(escape_markdown(str(exc)), icon=":material/error:")
        return None


def parse_seeds(text: str) -> list[int]:
    """Read "1", "1,2,5" or "1-5" as distinct seeds in their order.

    Raises:
        ConfigError: If it is something else, or more than MOST_SEEDS.
    """
    seeds: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and first.isascii() and (not dash or (last.isdecimal() and last.isascii()))):
            raise ConfigError(f'Seeds must be written as 1, 1,2,5 or 1-5, got "{text}".')
        low, high = int(first), int(last or first)
        if not low <= high < 2**31 or high - low >= MOST_SEEDS:
            raise ConfigError(f'Seeds must rise, stay below 2147483648 and be {MOST_SEEDS} at most, got "{text}".')
        seeds += range(low, high + 1)
    distinct = list(dict.fromkeys(seeds))
    if len(distinct) > MOST_SEEDS:
        raise ConfigError(f"At most {MOST_SEEDS} seeds start at once, got {len(distinct)}.")
    return distinct


def _available(config: RunConfig) -> bool:
    try:
        check_startable(config)
    except EmtcError as exc:
        messages.error(exc)
        return False
    return True


def _doubts(config: RunConfig) -> None:
    """Warn of what the trial of a stranger's environment showed: no success, or nothing to observe."""
    with messages.guarded():
        if doubt := doubt_success(config):
            st.warning(escape_markdown(doubt), icon=":material/flag:")
        if doubt := doubt_observations(config):
            st.warning(escape_markdown(doubt), icon=":material/visibility_off:")


def _cost(config: RunConfig, seeds: list[int]) -> None:
    expected = estimate(data.database(), config)
    left, middle, right = st.columns(3)
    left.metric("Expected duration, each run", f"≈ {duration(expected.seconds)}", help=expected.basis)
    middle.metric("Expected disk use, each run", f"≈ {size(expected.disk_bytes)}")
    right.metric("Runs", count(len(seeds)), help="They start together and share this machine.")
    st.caption(escape_markdown(f"The speed behind it is {expected.basis}. {describe_place(data.database())}"))


def _start(config: RunConfig, seeds: list[int]) -> None:
    token = st.session_state.setdefault(_TOKEN, secrets.token_hex(8))
    label = "Start" if len(seeds) == 1 else f"Start {len(seeds)} runs"
    idle = not messages.may_act()
    if not st.button(label, type="primary", icon=":material/rocket_launch:", key="start", disabled=idle):
        return
    name = str(st.session_state.get("launch_name_kept", "")).strip() or None
    started: list[str] = []
    try:
        for seed in seeds:
            titled = f"{name} (seed {seed})" if name and len(seeds) > 1 else name
            seeded = config.model_copy(update={"seed": seed})
            started.append(launch_run(data.database(), seeded, name=titled, launch_token=f"{token}-{seed}"))
    except EmtcError as exc:
        messages.error(exc)
        return
    st.session_state[_TOKEN] = secrets.token_hex(8)
    st.cache_data.clear()
    st.switch_page("../pages/live.py", query_params={state.RUN: started[0]})
