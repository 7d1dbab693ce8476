"""The answer of a study in one sentence, made from the verdicts on its claims.

A claim of a plan compares pairs of variants on each task. A finding is the result of one comparison. Only a primary
finding has a verdict (`app.analysis.significance.decide`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from app.analysis.findings import ALL_TASKS, Finding, StudyFindings
from app.analysis.significance import MIN_SEEDS, Verdict
from app.analysis.study_plans import Claim

_UNDECIDED: Final[frozenset[Verdict]] = frozenset({"too few seeds", "cannot tell"})
_PREDICATES: Final[dict[Verdict, tuple[str, str]]] = {
    "supported": ("is supported", "are supported"),
    "contradicted": ("is contradicted", "are contradicted"),
    "no relevant difference": ("has no relevant difference", "have no relevant difference"),
    "equal": ("has equal numbers for both variants", "have equal numbers for both variants"),
    "cannot tell": ("is undecided", "are undecided"),
    "too few seeds": ("has too few seeds", "have too few seeds"),
}
"""Verdict → predicate of one claim, and of several claims, in the order of the sentence."""
_VERDICTS_IN_TEXT: Final[dict[Verdict, str]] = {"cannot tell": "undecided"}
"""Verdict → its name in the sentence, if it differs."""
_MAX_TEXTS: Final = 2
"""Largest number of claims whose texts the sentence contains. Of more claims it contains the numbers."""


def answer_question(study: StudyFindings) -> str:
    """Write the verdicts on the claims of a study, and the number of seeds, in one sentence.

    A claim whose comparisons have different verdicts, for example on two tasks, is listed with each of them.
    """
    primary = [finding for finding in study.findings if finding.verdict is not None]
    if not primary:
        return "Not known yet: no claim has been measured."
    if all(finding.verdict == "too few seeds" for finding in primary):
        return f"Not known yet: {_count_seeds(primary)}, {MIN_SEEDS} are needed."
    if all(finding.verdict in _UNDECIDED for finding in primary):
        return f"Not known yet: no claim is decided with {_count_seeds(primary)}."
    claims_by_verdict: dict[Verdict, list[Claim]] = {}
    mixed: dict[str, list[Claim]] = {}
    unmeasured: list[Claim] = []
    for claim in study.plan.claims:
        verdicts_by_task = _group_by_task(primary, claim)
        verdicts: set[Verdict] = set().union(*verdicts_by_task.values())
        if not verdicts:
            unmeasured.append(claim)
        elif len(verdicts) == 1:
            claims_by_verdict.setdefault(verdicts.pop(), []).append(claim)
        else:
            mixed.setdefault(_describe_tasks(verdicts_by_task), []).append(claim)
    parts: list[tuple[str, Sequence[Claim]]] = []
    for verdict, (singular, plural) in _PREDICATES.items():
        claims = claims_by_verdict.get(verdict, [])
        parts.append((singular if len(claims) == 1 else plural, claims))
    parts += [(f"{'is' if len(claims) == 1 else 'are'} {text}", claims) for text, claims in mixed.items()]
    parts.append(("is not measured" if len(unmeasured) == 1 else "are not measured", unmeasured))
    parts = [(predicate, claims) for predicate, claims in parts if claims]
    n = len(study.plan.claims)
    if len(parts) == 1:
        predicate, claims = parts[0]
        subject = f"All {n} claims" if n > 1 else f"The claim “{claims[0].text}”"
        return f"{subject} {predicate}, with {_count_seeds(primary)}."
    sentences = []
    for index, (predicate, claims) in enumerate(parts):
        total = f" of {n} claims" if index == 0 else ""
        sentences.append(f"{len(claims)}{total} {predicate} ({_name_claims(claims)})")
    return f"{'; '.join(sentences)}, with {_count_seeds(primary)}."


def _group_by_task(primary: Sequence[Finding], claim: Claim) -> dict[str, list[Verdict]]:
    """Return task → the different verdicts of the pairs of a claim on this task."""
    verdicts_by_task: dict[str, list[Verdict]] = {}
    for finding in primary:
        if finding.claim == claim and finding.verdict is not None:
            verdicts = verdicts_by_task.setdefault(finding.task, [])
            if finding.verdict not in verdicts:
                verdicts.append(finding.verdict)
    return verdicts_by_task


def _describe_tasks(verdicts_by_task: Mapping[str, Sequence[Verdict]]) -> str:
    """Write the verdicts of one claim on each task: "supported on 2s3z and all tasks together, undecided on 3m"."""
    tasks_by_text: dict[str, list[str]] = {}
    for task, verdicts in verdicts_by_task.items():
        text = _join(_VERDICTS_IN_TEXT.get(verdict, verdict) for verdict in verdicts)
        tasks_by_text.setdefault(text, []).append("all tasks together" if task == ALL_TASKS else task)
    return ", ".join(f"{text} on {_join(tasks)}" for text, tasks in tasks_by_text.items())


def _name_claims(claims: Sequence[Claim]) -> str:
    """List at most `_MAX_TEXTS` claims with their texts, more of them by their numbers."""
    if len(claims) <= _MAX_TEXTS:
        return "; ".join(f"{claim.number}. {claim.text}" for claim in claims)
    numbers = sorted({claim.number for claim in claims})
    if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]}"
    return _join(map(str, numbers))


def _count_seeds(findings: Sequence[Finding]) -> str:
    """Write the number of seeds on a single task: "1 to 3 pairs of seeds per comparison"."""
    on_one_task = [finding for finding in findings if finding.task != ALL_TASKS]
    paired = [finding for finding in on_one_task if finding.difference.is_paired]
    counts = [finding.difference.min_n for finding in paired or on_one_task]
    low, high = min(counts), max(counts)
    number = f"{low}" if low == high else f"{low} to {high}"
    if not paired:
        return f"{number} {'seed' if high == 1 else 'seeds'} per variant"
    return f"{number} {'pair' if high == 1 else 'pairs'} of seeds per comparison"


def _join(texts: Iterable[str]) -> str:
    """Join texts: "a", "a and b", "a, b and c"."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last
