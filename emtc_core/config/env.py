"""Settings of the environments."""

from typing import Annotated, Literal

from pydantic import Field

from emtc_core.config.base import Section


class SkirmishConfig(Section):
    """The embedded simulator."""

    enemy_order: Literal["sorted", "official"] = "sorted"
    """Enemy slots: sorted by type and position (EMU's fork), or in creation order (official SMAC)."""
    reward_sparse: bool = False
    """Reward only +1 on a win and -1 on a loss instead of shaped damage."""


class GrfConfig(Section):
    """Google Research Football."""

    reward: Literal["paper", "emu"] = "paper"
    """paper: +1 goal, -1 conceded, 0 otherwise; emu: +100 goal, -1 at any other end."""
    trimmed: bool = True
    """Counter-attack scenarios with the trimmed line-ups of the CDS authors."""


class EnvConfig(Section):
    """Which game, and its own settings."""

    name: str = "skirmish"
    """Environment: skirmish, grf, smac, smax or pettingzoo."""
    map: Annotated[str, Field(min_length=1, max_length=300)] = "3m"
    """Map or scenario; for pettingzoo, module:factory."""
    skirmish: SkirmishConfig = SkirmishConfig()
    """The embedded simulator."""
    grf: GrfConfig = GrfConfig()
    """Google Research Football."""
