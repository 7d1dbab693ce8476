"""The answer of a study in one sentence, from made-up comparisons of each verdict."""

from dataclasses import replace

import pandas as pd
import pytest

from app.analysis.curves import Curves, PointTable
from app.analysis.findings import ALL_TASKS, Finding, StudyFindings
from app.analysis.measures import MEASURES
from app.analysis.significance import MeanDifference
from app.analysis.study_answer import answer_question
from app.analysis.study_plans import Claim, StudyPlan, get_shipped_plan

PAIRS = {
    "supported": ((0.2, 0.1, 0.3), 0.01),
    "contradicted": ((-0.2, -0.3, -0.1), 0.01),
    "no relevant difference": ((0.0, -0.01, 0.01), 0.9),
    "cannot tell": ((0.1, -0.3, 0.5), 0.5),
}
"""Verdict → estimate with its interval, and adjusted p value."""


def make_plan(n_claims: int) -> StudyPlan:
    plan = get_shipped_plan("parts")
    return plan.model_copy(update={"claims": plan.claims[:n_claims]})


def make_finding(claim: Claim, verdict: str, *, task: str = "3m", n: int = 5, is_paired: bool = True) -> Finding:
    (estimate, low, high), p = PAIRS.get(verdict, PAIRS["cannot tell"])
    difference = MeanDifference(estimate, low, high, (n,), n, is_paired, is_equal=verdict == "equal")
    finding = Finding(claim, task, "EMTC", "EMU", MEASURES[claim.measures[0]], difference, adjusted_p=p)
    assert finding.verdict == verdict
    return finding


def answer(plan: StudyPlan, findings: list[Finding]) -> str:
    curves = Curves(PointTable(pd.DataFrame()), ())
    return answer_question(StudyFindings(plan, (), curves, (), 0, {}, findings=tuple(findings)))


def test_without_a_measured_claim_nothing_is_known() -> None:
    assert answer(make_plan(2), []) == "Not known yet: no claim has been measured."


@pytest.mark.parametrize(
    ("counts", "number"),
    [
        ((2, 2), "2 pairs of seeds per comparison"),
        ((1, 3), "1 to 3 pairs of seeds per comparison"),
        ((1, 1), "1 pair of seeds per comparison"),
    ],
)
def test_too_few_seeds_are_counted_with_the_number_that_is_needed(counts: tuple[int, int], number: str) -> None:
    plan = make_plan(2)
    findings = [make_finding(c, "too few seeds", n=n) for c, n in zip(plan.claims, counts, strict=True)]
    assert answer(plan, findings) == f"Not known yet: {number}, 5 are needed."


def test_claims_about_one_variant_count_its_seeds() -> None:
    plan = make_plan(1)
    finding = make_finding(plan.claims[0], "too few seeds", n=4, is_paired=False)
    assert answer(plan, [finding]) == "Not known yet: 4 seeds per variant, 5 are needed."


def test_undecided_claims_are_not_called_refuted() -> None:
    plan = make_plan(2)
    findings = [make_finding(claim, "cannot tell") for claim in plan.claims]
    assert answer(plan, findings) == ("Not known yet: no claim is decided with 5 pairs of seeds per comparison.")


@pytest.mark.parametrize(
    ("verdict", "predicate"),
    [
        ("supported", "are supported"),
        ("contradicted", "are contradicted"),
        ("no relevant difference", "have no relevant difference"),
        ("equal", "have equal numbers for both variants"),
    ],
)
def test_one_verdict_on_all_claims_is_one_statement(verdict: str, predicate: str) -> None:
    plan = make_plan(3)
    findings = [make_finding(claim, verdict) for claim in plan.claims]
    assert answer(plan, findings) == f"All 3 claims {predicate}, with 5 pairs of seeds per comparison."


def test_few_claims_are_named_and_many_are_numbered() -> None:
    plan = make_plan(4)
    verdicts = ("supported", "cannot tell", "cannot tell", "cannot tell")
    findings = [make_finding(claim, verdict) for claim, verdict in zip(plan.claims, verdicts, strict=True)]
    assert answer(plan, findings) == (
        "1 of 4 claims is supported (1. EMTC learns better than EMU); 3 are undecided (2 to 4), "
        "with 5 pairs of seeds per comparison."
    )


def test_a_claim_with_different_verdicts_on_two_tasks_has_both() -> None:
    plan = make_plan(2)
    first, second = plan.claims
    findings = [
        make_finding(first, "supported", task="3m"),
        make_finding(first, "cannot tell", task="2s3z", n=6),
        make_finding(first, "supported", task=ALL_TASKS, n=11),
        make_finding(second, "contradicted", task="3m"),
    ]
    assert answer(plan, findings) == (
        "1 of 2 claims is contradicted (2. EMTC learns better than its backbone); 1 is supported on 3m and all tasks "
        "together, undecided on 2s3z (1. EMTC learns better than EMU), with 5 to 6 pairs of seeds per comparison."
    )


def test_a_claim_without_a_finding_is_not_measured() -> None:
    plan = make_plan(2)
    assert answer(plan, [make_finding(plan.claims[0], "supported")]).startswith(
        "1 of 2 claims is supported (1. EMTC learns better than EMU); 1 is not measured (2. "
    )


def test_a_measure_that_does_not_decide_is_ignored() -> None:
    plan = make_plan(1)
    (claim,) = plan.claims
    other = replace(make_finding(claim, "contradicted"), measure=MEASURES[claim.measures[1]])
    assert answer(plan, [make_finding(claim, "supported"), other]).startswith(
        "The claim “EMTC learns better than EMU” is"
    )
