"""The eight unit types: StarCraft II 4.10 statistics in game loops and map cells.

All numbers are published in the game's catalogs; none is tuned. One game loop is 1/16 s of game time at "normal"
speed. Speeds are in cells per loop, periods in loops.
"""

from dataclasses import dataclass
from typing import Literal

UnitName = Literal["marine", "marauder", "medivac", "stalker", "zealot", "colossus", "hydralisk", "zergling"]
Attribute = Literal["none", "light", "armored"]
Delivery = Literal["instant", "missile", "blades", "line", "heal"]
Layer = Literal["ground", "giant", "air"]

LOOPS_PER_SECOND = 16.0
SHIELD_DELAY = 160
"""Loops without damage before a shield recharges."""
SHIELD_RATE = 2.0 / LOOPS_PER_SECOND
"""Shield points per loop."""
ZERG_RATE = 0.2734 / LOOPS_PER_SECOND
"""Health points per loop of every zerg unit."""
ENERGY_START, ENERGY_MAX, ENERGY_RATE = 50.0, 200.0, 0.5625 / LOOPS_PER_SECOND
HEAL_RATE = 9.0 / LOOPS_PER_SECOND
"""Health points per loop that a medivac restores."""
HEAL_COST = 0.33
"""Energy per restored health point."""
HEAL_START_ENERGY = 5.0
"""An enemy medivac starts to heal only with at least this energy."""
HEAL_SEARCH = 6.0
"""Maximum gap to a wounded friend that an enemy medivac heals [cells]."""
SECOND_BLADE = 4.5
"""Loops between the two hits of a zealot's attack."""
MIN_DAMAGE = 0.5
"""Damage of a hit on health, if armor would reduce it below this value."""
RANGE_TOLERANCE = 1.0
"""A target can move this far out of range before the attacker follows it [cells]."""
TURN_DEGREES = 62.5
"""Turn per loop."""
DELAY_LOW, DELAY_HIGH = -1.0, 2.0
"""Bounds of the uniform random part of a weapon period, in loops."""
BEAM_HALF_LENGTH, BEAM_HALF_WIDTH = 1.4, 0.15
"""Footprint of the colossus: a bar across the firing direction, centered on the target."""


@dataclass(frozen=True)
class UnitType:
    """One unit type. Distances in cells, times in loops, accelerations in cells per loop squared."""

    name: UnitName
    stock_id: int
    """Number of the unit type in StarCraft II."""
    health: float
    speed: float
    radius: float
    separation: float
    """Collision radius: overlapping units of one layer push each other apart."""
    damage: float
    bonus: float
    bonus_against: Attribute
    reach: float
    """Weapon range, from edge to edge."""
    scan: float
    """Range in which an enemy unit searches for targets."""
    period: float
    """Time between two attacks."""
    wind_up: float
    delivery: Delivery
    """blades: two hits; line: a beam that hits an area (`BEAM_HALF_LENGTH`); heal: no damage."""
    shown_cooldown: float
    """The cooldown in the state is divided by this constant (SMAC's constant, not the true period)."""
    shield: float = 0.0
    armor: float = 0.0
    attribute: Attribute = "none"
    biological: bool = False
    zerg: bool = False
    missile_speed: float = 1.0
    layer: Layer = "ground"
    """Only units of one layer collide. giant: a ground unit that does not collide with the layer ground."""
    hits_air: bool = False
    acceleration: float = 1000.0


# fmt: off
# One row per type, in the order of the fields: name, id, health, speed, radius, separation, damage, bonus,
# bonus against, reach, scan, period, wind-up, delivery, shown cooldown.
MARINE = UnitType(
    "marine", 48, 45, 2.25 / LOOPS_PER_SECOND, 0.375, 0.375, 6, 0, "none", 5, 5.5, 13.77, 0.8, "instant", 15,
    attribute="light", biological=True, hits_air=True,
)
MARAUDER = UnitType(
    "marauder", 51, 125, 2.25 / LOOPS_PER_SECOND, 0.5625, 0.5, 10, 10, "armored", 6, 6.5, 24, 0, "missile", 25,
    armor=1, attribute="armored", biological=True, missile_speed=1.25,
)
ENEMY_MEDIVAC = UnitType(
    "medivac", 54, 150, 2.5 / LOOPS_PER_SECOND, 0.75, 0.75, 0, 0, "none", 4, 6, 1, 0, "heal", 200,
    armor=1, attribute="armored", layer="air", acceleration=2.25 / LOOPS_PER_SECOND**2,
)
ALLY_MEDIVAC = UnitType(
    "medivac", 54, 150, 2.75 / LOOPS_PER_SECOND, 0.75, 0.75, 0, 0, "none", 4, 6, 1, 0, "heal", 200,
    armor=1, attribute="armored", layer="air", acceleration=2.3125 / LOOPS_PER_SECOND**2,
)
STALKER = UnitType(
    "stalker", 74, 80, 2.9531 / LOOPS_PER_SECOND, 0.625, 0.625, 13, 5, "armored", 6, 6.5, 29.92, 2.7, "missile", 35,
    shield=80, armor=1, attribute="armored", missile_speed=1.17, hits_air=True,
)
ZEALOT = UnitType(
    "zealot", 73, 100, 2.25 / LOOPS_PER_SECOND, 0.5, 0.375, 8, 0, "none", 0.1, 5, 19.2, 0, "blades", 22,
    shield=50, armor=1, attribute="light", biological=True,
)
COLOSSUS = UnitType(
    "colossus", 4, 200, 2.25 / LOOPS_PER_SECOND, 1.0, 0.75, 10, 5, "light", 7, 7.5, 24, 1.3, "line", 24,
    shield=150, armor=1, attribute="armored", layer="giant",
)
HYDRALISK = UnitType(
    "hydralisk", 107, 80, 2.25 / LOOPS_PER_SECOND, 0.625, 0.5, 12, 0, "none", 5, 5.5, 13.2, 3.3, "missile", 10,
    attribute="light", biological=True, zerg=True, missile_speed=2.5, hits_air=True,
)
ZERGLING = UnitType(
    "zergling", 105, 35, 2.9531 / LOOPS_PER_SECOND, 0.375, 0.375, 5, 0, "none", 0.1, 5, 11.14, 2.7, "instant", 11,
    attribute="light", biological=True, zerg=True,
)
# fmt: on
