"""The plans of the included studies as data: sweeps, variants, measures and claims.

`first-study.md` and `confirmatory-study.md` in `app/jobs/sweeps/templates` contain the plans as text, with the rule for
verdicts. `app.analysis.findings` computes the numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from app.analysis.curves import ComparedRun
from emtc_core.config.resolve import Value


class StudyVariant(NamedTuple):
    """A variant of a plan: an algorithm, with the settings that select it among the runs of that algorithm."""

    name: str
    algo: str
    settings: Mapping[str, Value] = {}
    without: Mapping[str, Value] = {}
    """Settings that exclude a run from this variant."""

    def matches(self, run: ComparedRun) -> bool:
        """Return whether a run belongs to this variant."""
        settings = run.settings
        return (
            settings.get("algo") == self.algo
            and all(settings.get(key) == value for key, value in self.settings.items())
            and all(settings.get(key) != value for key, value in self.without.items())
        )


class Measure(NamedTuple):
    """One number per run."""

    key: str
    title: str
    meaning: str
    is_rate: bool = False
    is_pooled: bool = True
    """Whether tasks can be averaged; not if its unit is the return of the task."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, the compared variants and the measures; the sign of the first measure decides."""

    number: int
    text: str
    pairs: tuple[tuple[StudyVariant, StudyVariant | None], ...]
    """Compared variants. Without a second variant, the measure is compared with 0."""
    measures: tuple[Measure, ...]
    """The first measure is the primary one and decides. The others are only reported."""
    sign: int = 1
    other_pairs: tuple[tuple[StudyVariant, StudyVariant | None], ...] = ()
    """Variants that are measured in the same way, without a verdict."""


@dataclass(frozen=True)
class StudyPlan:
    """One plan: the names of its sweeps, and its claims."""

    title: str
    sweeps: tuple[str, ...]
    claims: tuple[Claim, ...]
    guide: str = ""
    """Name of the file with the plan as text."""
    question: str = ""
    """The first question in this text."""


_PREWRITE: Final = {"preset": "prewrite"}
EMTC: Final = StudyVariant("EMTC(QPLEX)", "emtc-qplex", {"gate.enabled": True, "embed.type": "tcse"}, _PREWRITE)
EMTC_PREWRITE: Final = StudyVariant("EMTC(QPLEX), prewrite", "emtc-qplex", {"gate.enabled": True, **_PREWRITE})
NO_TCGM: Final = StudyVariant("No-TCGM", "emtc-qplex", {"gate.enabled": False, "embed.type": "tcse"}, _PREWRITE)
NO_TCSE: Final = StudyVariant("No-TCSE", "emtc-qplex", {"gate.enabled": True, "embed.type": "dcae"}, _PREWRITE)
EMU: Final = StudyVariant("EMU(QPLEX)", "emu-qplex")
QPLEX: Final = StudyVariant("QPLEX", "qplex")
EMTC_CDS: Final = StudyVariant("EMTC(CDS)", "emtc-cds", {"gate.enabled": True, "embed.type": "tcse"}, _PREWRITE)
CDS: Final = StudyVariant("CDS", "cds")

MU_W: Final = Measure(
    "mu_w",
    "μ̄_w",
    "time average of the win rate from the first evaluation to the end of the budget; robust win rate on skirmish, "
    "greedy elsewhere",
    True,
)
FINAL: Final = Measure(
    "final",
    "final win rate",
    "mean win rate of the evaluations in the last tenth of the budget; robust or greedy as μ̄_w",
    True,
)
MU_W_GREEDY: Final = Measure("mu_w_greedy", "greedy μ̄_w", "μ̄_w of the greedy win rate on all environments", True)
FINAL_GREEDY: Final = Measure(
    "final_greedy", "final greedy win rate", "final greedy win rate on all environments", True
)
FALLS: Final = Measure(
    "falls", "falls", "evaluations below .5 after the first evaluation of at least .9; robust or greedy as μ̄_w"
)
Q_ERROR: Final = Measure(
    "q_error",
    "error of Q [return]",
    "mean of |greedy Q_tot(s₀) − return| over the evaluations in the second half of the budget",
    is_pooled=False,
)
OVERESTIMATION: Final = Measure(
    "overestimation",
    "overestimation [return]",
    "mean of greedy Q_tot(s₀) − return over the evaluations in the second half of the budget; positive if Q is too "
    "high",
    is_pooled=False,
)
DELTA_RATIO: Final = Measure(
    "delta_ratio",
    "ln Δ̄ last / first tenth, from the first win on",
    "mean Δ_mem of new transitions; the first win is the first won training episode",
)
DELTA_RATIO_WHOLE: Final = Measure(
    "delta_ratio_whole", "ln Δ̄ last / first tenth, whole run", "the same from the first transition on"
)
BETA_RISE: Final = Measure("beta_rise", "β̄ last − first tenth, from the first win on", "mean β of new transitions")
BETA_RISE_WHOLE: Final = Measure(
    "beta_rise_whole", "β̄ last − first tenth, whole run", "the same from the first transition on"
)
CLOSED_MORE: Final = Measure(
    "closed_more",
    "closed: lost − won",
    "fraction of transitions with β < .5 in lost episodes minus that in won episodes, from the first win on",
)
REMOVED: Final = Measure(
    "removed", "incentive removed, from the first win on", "mean of Σ|(1 − β) r_p| / Σ|r_p| over the reports"
)
REMOVED_WHOLE: Final = Measure("removed_whole", "incentive removed, whole run", "the same over all reports")
R2_OF_H: Final = Measure(
    "r2", "R² of H", "H of a node predicted by its nearest nodes of other episodes, at the last snapshot"
)
R2_OVER_DCAE: Final = Measure(
    "r2_dcae", "R² of H: TCSE − dCAE", "both embedders newly fitted to the states of a run's last snapshot"
)
R2_OVER_RANDOM: Final = Measure(
    "r2_random", "R² of H: TCSE − random", "the same with a fixed random projection instead of dCAE"
)

MEASURES: Final = (
    *(MU_W, FINAL, FALLS, MU_W_GREEDY, FINAL_GREEDY, Q_ERROR, OVERESTIMATION),
    *(DELTA_RATIO, DELTA_RATIO_WHOLE, BETA_RISE, BETA_RISE_WHOLE, CLOSED_MORE, REMOVED, REMOVED_WHOLE),
    *(R2_OF_H, R2_OVER_DCAE, R2_OVER_RANDOM),
)

_LEARNING: Final = (MU_W, FINAL, FALLS)
_FIRST_LEARNING: Final = (*_LEARNING, MU_W_GREEDY, FINAL_GREEDY)
_GATED: Final = ((EMTC, None), (EMTC_CDS, None))
_FIRST_CLAIMS: Final = (
    Claim(1, "EMTC learns better than EMU", ((EMTC, EMU),), _FIRST_LEARNING),
    Claim(2, "EMTC learns better than its backbone", ((EMTC, QPLEX), (EMTC_CDS, CDS)), _FIRST_LEARNING),
    Claim(3, "The gate helps", ((EMTC, NO_TCGM),), _FIRST_LEARNING),
    Claim(4, "The contrastive embedder helps", ((EMTC, NO_TCSE),), (*_FIRST_LEARNING, R2_OF_H)),
    Claim(5, "Δ̄ falls during training", _GATED, (DELTA_RATIO, DELTA_RATIO_WHOLE), -1),
    Claim(5, "β̄ rises during training", _GATED, (BETA_RISE, BETA_RISE_WHOLE)),
    Claim(6, "The gate reduces the error of Q", ((EMTC, NO_TCGM),), (Q_ERROR, OVERESTIMATION), -1),
    Claim(7, "The gate closes on misleading memories", _GATED, (CLOSED_MORE, REMOVED, REMOVED_WHOLE)),
    Claim(8, "TCSE separates states better than dCAE", ((EMTC, None),), (R2_OVER_DCAE,)),
    Claim(8, "TCSE separates states better than a random projection", ((EMTC, None),), (R2_OVER_RANDOM,)),
)
_PREWRITE_ALONE: Final = ((EMTC_PREWRITE, None),)
_CONFIRMATORY_CLAIMS: Final = (
    Claim(1, "EMTC learns better than EMU", ((EMTC, EMU),), _LEARNING),
    Claim(2, "EMTC learns better than its backbone", ((EMTC, QPLEX),), _LEARNING),
    Claim(3, "The gate helps", ((EMTC, NO_TCGM),), _LEARNING),
    Claim(4, "A strong gate helps", ((EMTC_PREWRITE, NO_TCGM),), _LEARNING),
    Claim(5, "Δ̄ falls during training", ((EMTC, None),), (DELTA_RATIO, DELTA_RATIO_WHOLE), -1, _PREWRITE_ALONE),
    Claim(6, "β̄ rises during training", ((EMTC, None),), (BETA_RISE, BETA_RISE_WHOLE), 1, _PREWRITE_ALONE),
    Claim(7, "The gate reduces the error of Q", ((EMTC, NO_TCGM),), (Q_ERROR, OVERESTIMATION), -1),
    Claim(
        8,
        "The gate closes on misleading memories",
        ((EMTC, None),),
        (CLOSED_MORE, REMOVED, REMOVED_WHOLE),
        1,
        _PREWRITE_ALONE,
    ),
)

CONFIRMATORY: Final = StudyPlan(
    "Confirmatory study",
    ("Confirmatory study: football", "Confirmatory study: 3s_vs_5z"),
    _CONFIRMATORY_CLAIMS,
    "confirmatory-study.md",
    "Does EMTC(QPLEX) learn better than EMU(QPLEX), than its backbone QPLEX and than itself without the gate? Does the "
    "gate behave as the paper describes?",
)
FIRST: Final = StudyPlan(
    "First study",
    tuple(
        f"First study {part}"
        for part in ("A: 3s_vs_5z", "B: 2s3z", "C: 6h_vs_8z", "D: football, 3 against 1 with keeper")
    ),
    _FIRST_CLAIMS,
    "first-study.md",
    "Does EMTC beat EMU and its own backbone on the embedded simulator and on football, and does its gate do what the "
    "paper says of it?",
)
UNPLANNED: Final = StudyPlan("Runs outside the plans (exploratory)", (), _FIRST_CLAIMS)
"""The claims of the first study, applied to runs that do not belong to a plan."""
PLANS: Final = (CONFIRMATORY, FIRST)
