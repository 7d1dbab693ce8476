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


FEW = "too few seeds"
FIVE = "with 5 pairs of seeds per comparison."
EMU, BACKBONE = "1. EMTC learns better than EMU", "2. EMTC learns better than its backbone"


@pytest.mark.parametrize(
    ("n_claims", "findings", "text"),
    [
        (2, [], "Not known yet: no claim has been measured."),
        (2, [(0, FEW, {"n": 2}), (1, FEW, {"n": 2})], "Not known yet: 2 pairs of seeds per comparison, 5 are needed."),
        (
            2,
            [(0, FEW, {"n": 1}), (1, FEW, {"n": 3})],
            "Not known yet: 1 to 3 pairs of seeds per comparison, 5 are needed.",
        ),
        (1, [(0, FEW, {"n": 1})], "Not known yet: 1 pair of seeds per comparison, 5 are needed."),
        (1, [(0, FEW, {"n": 4, "is_paired": False})], "Not known yet: 4 seeds per variant, 5 are needed."),
        (2, [(0, "cannot tell", {}), (1, "cannot tell", {})], f"Not known yet: no claim is decided {FIVE}"),
        (2, [(0, "supported", {}), (1, "supported", {})], f"All 2 claims are supported, {FIVE}"),
        (2, [(0, "contradicted", {}), (1, "contradicted", {})], f"All 2 claims are contradicted, {FIVE}"),
        (
            2,
            [(0, "no relevant difference", {}), (1, "no relevant difference", {})],
            f"All 2 claims have no relevant difference, {FIVE}",
        ),
        (2, [(0, "equal", {}), (1, "equal", {})], f"All 2 claims have equal numbers for both variants, {FIVE}"),
        (
            4,
            [(0, "supported", {}), *((k, "cannot tell", {}) for k in (1, 2, 3))],
            f"1 of 4 claims is supported ({EMU}); 3 are undecided (2 to 4), {FIVE}",
        ),
        (
            2,
            [
                *[(0, "supported", {"task": "3m"}), (0, "cannot tell", {"task": "2s3z", "n": 6})],
                *[(0, "supported", {"task": ALL_TASKS, "n": 11}), (1, "contradicted", {"task": "3m"})],
            ],
            f"1 of 2 claims is contradicted ({BACKBONE}); 1 is supported on 3m and all tasks together, undecided on "
            f"2s3z ({EMU}), with 5 to 6 pairs of seeds per comparison.",
        ),
        (
            2,
            [(0, "supported", {})],
            f"1 of 2 claims is supported ({EMU}); 1 is not measured ({BACKBONE}), {FIVE}",
        ),
    ],
    ids=[
        "no finding", "too few pairs", "different numbers of pairs", "one pair", "too few seeds of one variant",
        "undecided", "all supported", "all contradicted", "no relevant difference", "equal",
        "many claims of one verdict", "two verdicts on one claim", "a claim without a finding",
    ],
)  # fmt: skip
def test_the_answer_counts_the_claims_of_each_verdict_and_the_seeds(n_claims, findings, text) -> None:
    plan = make_plan(n_claims)
    made = [make_finding(plan.claims[index], verdict, **options) for index, verdict, options in findings]
    assert answer(plan, made) == text


def test_a_measure_that_does_not_decide_is_ignored() -> None:
    plan = make_plan(1)
    (claim,) = plan.claims
    other = replace(make_finding(claim, "contradicted"), measure=MEASURES[claim.measures[1]])
    assert answer(plan, [make_finding(claim, "supported"), other]).startswith(
        "The claim “EMTC learns better than EMU” is"
    )
