"""Studies: runs that differ in a few named settings, and the check that they differ in nothing else.

Which runs? Named ones, or every run there is, on some maps and of some algorithms.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.series import Comparison, LeftOut, Seed, read_seeds, settle
from app.analysis.settings import TASK, Settings, is_harmless, learning_settings
from emtc_core.config.resolve import Value
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.queries.runs import RunFilter, get_rows, matching_ids
from storage.runs.rows import RunRow, find_run


def select_runs(
    db: Database,
    names: Sequence[str] | None = None,
    *,
    maps: Collection[str] | None = None,
    algos: Collection[str] | None = None,
) -> list[RunRow]:
    """Find the named runs in their order, or every evaluated one, newest first; whether one counts is not asked here.

    Hidden and archived runs are found by name alone.

    Raises:
        RunNotFoundError: If a name is no run's id or its beginning.
    """
    if names:
        rows = [find_run(db, name) for name in dict.fromkeys(names)]
        rows = list({row.id: row for row in rows}.values())
    else:
        drawn = RunFilter(shelf="drawn", evaluated=True)
        rows = get_rows(db, matching_ids(db, drawn, sort="-created"))
    return [row for row in rows if (not maps or row.map in maps) and (not algos or row.algo in algos)]


LAMBDAS = ("embed.lambda_rcon", "embed.lambda_cl")
AUGMENTATION = ("embed.p_mask", "embed.sigma")
TAUS = ("gate.tau_start", "gate.tau_end")
DELTA, EMBEDDER = "memory.delta", "embed.type"
BUDGET = "train.t_max"
_FREE = frozenset({"seed", "preset"}) | TASK
"""What may differ between the runs of any study: the seed; the name of a preset whose values are compared anyway."""


def read_study(
    db: Database,
    rows: Sequence[RunRow],
    *,
    include_unfinished: bool = False,
    final: bool = True,
    quantity: Quantity = WIN_RATE,
) -> Comparison:
    """Read the win rates of a study's runs and settle which of them count."""
    return settle(read_seeds(db, rows, quantity), quantity, include_unfinished=include_unfinished, final=final)


def check_one_study(name: str, seeds: Sequence[Seed], keys: Iterable[str]) -> None:
    """Refuse runs that differ in more than the settings that a study varies.

    Raises:
        ConfigError: Naming the setting and two of its values.
    """
    varied = tuple(keys)
    first: dict[str, Settings] = {}
    for seed in seeds:
        usual = first.setdefault(seed.task, seed.settings)
        shared = usual.keys() & seed.settings.keys() - _FREE - set(varied)
        for key in sorted(shared, key=lambda each: (each != BUDGET, each)):  # other settings follow from the budget
            if seed.settings[key] != usual[key] and not is_harmless(key):
                raise ConfigError(
                    f"{name} compares runs that differ in {', '.join(varied)} alone; {key} differs too: "
                    f"{usual[key]} and {seed.settings[key]}. Leave one of the two groups out."
                )


def group_seeds(seeds: Iterable[Seed], *keys: str) -> dict[tuple[Value, ...], list[Seed]]:
    """Group seeds by the values of some settings, in ascending order of the values."""
    groups: dict[tuple[Value, ...], list[Seed]] = {}
    for seed in seeds:
        groups.setdefault(tuple(seed.settings.get(key) for key in keys), []).append(seed)
    return dict(sorted(groups.items(), key=lambda item: tuple((isinstance(v, str), v) for v in item[0])))


def find_studies(seeds: Sequence[Seed], keys: Sequence[str], fits: Callable[[Seed], bool]) -> list[Seed]:
    """Keep the seeds that belong to a study: those whose like, but for `keys` and seed, ran at two points."""
    kinds: dict[tuple[tuple[str, Value], ...], list[Seed]] = {}
    for seed in filter(fits, seeds):
        same = {key: value for key, value in learning_settings(seed.settings).items() if key not in keys}
        kinds.setdefault(tuple(sorted(same.items())), []).append(seed)
    return [seed for study in kinds.values() if len(group_seeds(study, *keys)) > 1 for seed in study]


def tell_left_out(left_out: Sequence[LeftOut]) -> str:
    """The sentence of a caption on the runs that do not count; empty when all do."""
    if not left_out:
        return ""
    shown = "; ".join(str(each) for each in left_out[:5])
    more = f"; and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    return f" Left out: {shown}{more}."
