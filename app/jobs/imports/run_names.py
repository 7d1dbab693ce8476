"""Find the algorithm, the map and the seed in the name of a run or folder of another program."""

import re
from typing import Final, NamedTuple

from app.jobs.imports.parsed_run import SourceOverrides
from emtc_core.envs.smac.maps import SMAC_MAPS, SMACV2_MAPS

_MAPS_LONGEST_FIRST: Final = sorted((*SMAC_MAPS, *SMACV2_MAPS), key=len, reverse=True)
"""Maps that are searched in names of runs. A longer name is found first: 3s5z_vs_3s6z, not 3s5z."""
MAPS_BY_LOWER_NAME: Final = {name.lower(): name for name in _MAPS_LONGEST_FIRST}
"""Name of a map in lower case → map, for example mmm2 → MMM2. Some programs write all names in lower case."""
_DATE: Final = re.compile(r"[ _]*\d{4}-\d\d-\d\d.*$")
_SEED: Final = re.compile(r"(?:(?<=[^a-z])|^)seed[ _=-]?(\d{1,18})(?!\d)", re.IGNORECASE)
"""The word "seed" that does not follow a letter, and its number."""
_SEPARATORS: Final = " _/-"
_MEANINGLESS_FOLDERS: Final = re.compile(r"(?:run[_-]?\d+|logs|tb|tb_logs|tensorboard|summaries)", re.IGNORECASE)
"""Names of folders that do not describe a run."""


class RunName(NamedTuple):
    """The parts of the name of a run; None if the name does not contain the part."""

    algo: str | None
    map: str | None
    seed: int | None


def parse_run_name(name: str, overrides: SourceOverrides) -> RunName:
    """Find seed, map and algorithm in a name or path such as "qmix_3m_seed1" or "3m/qmix/seed_1/logs".

    The words that remain are the algorithm. A map is found if it is the user's map, a map of SMAC or SMACv2, or a
    scenario of football.
    """
    # Example: "qmix_3m_seed1" → rest "qmix_3m_" → rest "qmix__" → algorithm "qmix".
    folders = [folder for folder in name.split("/") if not _MEANINGLESS_FOLDERS.fullmatch(folder)]
    rest = _DATE.sub("", "/".join(folders))  # the part of the name that is not parsed yet
    seed_match = _SEED.search(rest)
    rest = _SEED.sub("", rest, count=1)
    maps = [overrides.map] if overrides.map else _MAPS_LONGEST_FIRST
    # A map is one of these names, or academy_… (football), between two separators or an end of the name.
    map_names = "|".join([*map(re.escape, maps), r"academy_\w+?"])
    before = rf"(?:(?<=[{_SEPARATORS}])|^)"
    after = rf"(?=[{_SEPARATORS}]|$)"
    map_match = re.search(rf"{before}(?:{map_names}){after}", rest)
    if map_match:
        rest = rest[: map_match.start()] + rest[map_match.end() :]
    # Two adjacent separators show where the seed or the map was removed. A single one belongs to the algorithm.
    words = [word for word in re.split(rf"[{_SEPARATORS}]{{2,}}", rest) if word.strip(_SEPARATORS)]
    algo = "_".join(word.strip(_SEPARATORS) for word in words)
    return RunName(
        algo=algo or None,
        map=map_match[0] if map_match else None,
        seed=int(seed_match[1]) if seed_match else None,
    )


def find_seed(name: str) -> int | None:
    """Find the seed in a name such as "seed_3", "qmix_seed42_3m" or "3"."""
    match = _SEED.search(name) or re.fullmatch(r"(\d{1,18})", name)
    return int(match[1]) if match else None
