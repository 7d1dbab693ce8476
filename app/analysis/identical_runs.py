"""Variants whose runs with equal seeds have identical evaluations.

Two such variants were trained in the same way, although their settings differ. The usual reason is a run without a win:
the incentive of the memory is 0 until the first success, so neither the gate nor the embedder changes the training.
"""

from collections.abc import Sequence

from app.analysis.series import Comparison, Group, get_seed


def are_identical(first: Group, other: Group) -> bool:
    """Return whether two variants have a common seed, and identical evaluations in each common seed."""
    evaluations, other_evaluations = ({get_seed(seed): seed.evaluations for seed in g.seeds} for g in (first, other))
    common = evaluations.keys() & other_evaluations.keys()
    return bool(common) and all(
        evaluations[seed] is not None and evaluations[seed] == other_evaluations[seed] for seed in common
    )


def label_identical(groups: Sequence[Group]) -> str:
    """Return "identical runs" with the reason if it is known: no evaluation has a win, and a success is a win."""
    return f"identical runs{_find_reason(groups)}"


def describe_identical_runs(comparison: Comparison) -> str:
    """Write the sentences of a caption that name the identical variants of each task; empty if there are none."""
    sentences = []
    for task in comparison.tasks:
        clusters: list[list[Group]] = []
        for group in (group for group in comparison.groups if group.variant.task == task):
            cluster = next((groups for groups in clusters if are_identical(groups[0], group)), None)
            if cluster is None:
                clusters.append([group])
            else:
                cluster.append(group)
        sentences += [
            f"Identical runs on {task}: {'; '.join(group.variant.name for group in groups)}{_find_reason(groups)}."
            for groups in clusters
            if len(groups) > 1
        ]
    return " ".join(sentences)


def _find_reason(groups: Sequence[Group]) -> str:
    seeds = [seed for group in groups for seed in group.seeds]
    has_win = any(seed.evaluations is None or seed.evaluations.has_win for seed in seeds)
    by_return = any(seed.settings.get("memory.success") == "return_threshold" for seed in seeds)
    return "" if has_win or by_return else " (no win yet, so the memory pays no incentive)"
