"""Variants whose runs with equal seeds have identical evaluations.

Two such variants were trained in the same way, although their settings differ. The usual reason is a run without a win.
The episodic incentive is 0 until the first success. Until then, neither the gate (its weight β) nor the embedder of the
memory changes the training.
"""

from collections.abc import Sequence

from app.analysis.curves import Curves


def are_identical(first: Curves, other: Curves) -> bool:
    """Return whether two variants have a common seed, and identical evaluations in each common seed."""
    evaluations = {run.seed: run.evaluations for run in first.runs}
    other_evaluations = {run.seed: run.evaluations for run in other.runs}
    common = evaluations.keys() & other_evaluations.keys()
    return bool(common) and all(
        evaluations[seed] is not None and evaluations[seed] == other_evaluations[seed] for seed in common
    )


def label_identical(groups: Sequence[Curves]) -> str:
    """Return "identical runs", with the reason if no evaluation has a win and a success is a win."""
    return f"identical runs{_find_reason(groups)}"


def describe_identical_runs(curves: Curves) -> str:
    """Write the sentences of a caption that name the identical variants of each task; empty if there are none."""
    clusters: list[list[Curves]] = []
    for group in curves.by_variant:
        same_task = [cluster for cluster in clusters if cluster[0].variant.task == group.variant.task]
        cluster = next((cluster for cluster in same_task if are_identical(cluster[0], group)), None)
        if cluster is None:
            clusters.append([group])
        else:
            cluster.append(group)
    sentences = []
    for cluster in clusters:
        if len(cluster) > 1:
            names = "; ".join(group.variant.name for group in cluster)
            sentences.append(f"Identical runs on {cluster[0].variant.task}: {names}{_find_reason(cluster)}.")
    return " ".join(sentences)


def _find_reason(groups: Sequence[Curves]) -> str:
    """Return the reason in parentheses; empty if it is unknown."""
    runs = [run for group in groups for run in group.runs]
    may_have_win = any(run.evaluations is None or run.evaluations.has_win for run in runs)
    is_success_by_return = any(run.settings.get("memory.success") == "return_threshold" for run in runs)
    if may_have_win or is_success_by_return:
        return ""
    return " (no win yet, so the memory pays no incentive)"
