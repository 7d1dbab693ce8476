"""Studies: runs that differ in a few named settings, and the check that they differ in nothing else."""

from collections.abc import Callable, Iterable, Sequence

from app.analysis.quantities import WIN_RATE, Quantity
from app.analysis.series import Comparison, LeftOut, Seed, read_seeds, settle
from app.analysis.settings import TASK, Settings, is_harmless, learning_settings
from emtc_core.config.resolve import Value
from emtc_core.errors import ConfigError
from storage.engine import Database
from storage.runs.rows import RunRow

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
    """Say in a caption which runs do not count; empty when all do."""
    if not left_out:
        return ""
    shown = "; ".join(str(each) for each in left_out[:5])
    more = f"; and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    return f" Left out: {shown}{more}."
