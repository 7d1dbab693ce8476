"""Results of checking the rules of a plug-in contract, and the sizes of the inputs that the checks make up."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from emtc_core.envs.base import EnvInfo
from emtc_core.errors import EmtcError

INFO = EnvInfo("made-up", "made-up", 3, 4, 5, 7, episode_limit=20, reward_range=(-1.0, 1.0))
"""Sizes of the made-up inputs."""
ARGUMENTS_RULE = "the arguments have types and valid values"


@dataclass(frozen=True)
class RuleResult:
    """Result of checking one rule."""

    rule: str
    fault: str = ""
    """How the plug-in breaks the rule; empty if it does not."""

    @property
    def holds(self) -> bool:
        """Whether the plug-in fulfils the rule."""
        return not self.fault


class BrokenRuleError(Exception):
    """Raised by a check, with the fault."""


def check_rule(rule: str, function: Callable[[], object]) -> RuleResult:
    """Call a function that raises if the plug-in breaks the rule. Its return value is ignored."""
    try:
        function()
    except (EmtcError, BrokenRuleError) as error:
        return RuleResult(rule, str(error))
    except Exception as error:  # the code of a plug-in may raise anything
        return RuleResult(rule, f"{type(error).__name__}: {error}")
    return RuleResult(rule)


def require(condition: bool | np.bool_, fault: str) -> None:
    """Raise if a condition is false.

    Raises:
        BrokenRuleError: With the fault.
    """
    if not condition:
        raise BrokenRuleError(fault)
