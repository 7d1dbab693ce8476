"""A scripted StarCraft II: speaks the game's protocol to the real `smac` package, with toy rules.

It stands where pysc2's controller of a running game would: units walk and shoot by simple deterministic
rules and are created anew when all are dead, as SMAC's maps do, or when they are asked for, as on SMACv2's.
It runs in the game worker's interpreter, where `install` puts it in the game's place, and needs s2clientprotocol.
"""

import math
import os
from dataclasses import dataclass, field
from types import SimpleNamespace

MOVE, ATTACK, STOP = 16, 23, 4
SIZE = 32


@dataclass
class Unit:
    tag: int
    owner: int
    unit_type: int
    x: float
    y: float
    health: float = 45.0
    health_max: float = 45.0
    shield: float = 0.0
    shield_max: float = 0.0
    cooldown: float = 0.0
    order: tuple = field(default=(STOP, None))


# unit type, health, shield; allied types are a map's own, enemies have the game's ids
MARINE, ENEMY_MARINE = (1_000, 45.0, 0.0), (48, 45.0, 0.0)
STALKER, ZEALOT = (1_000, 80.0, 80.0), (1_001, 100.0, 50.0)
ENEMY_ZEALOT, ENEMY_STALKER = (73, 100.0, 50.0), (74, 80.0, 80.0)
ARMIES = {
    "3m": ([MARINE] * 3, [ENEMY_MARINE] * 3),
    "2s3z": ([STALKER] * 2 + [ZEALOT] * 3, [ENEMY_STALKER] * 2 + [ENEMY_ZEALOT] * 3),
}
# SMACv2's own unit types are the last nine of the game's list, in alphabetic order
N_TYPES = 2_000
SMACV2_TYPES = ("baneling", "colossus", "hydralisk", "marauder", "marine", "medivac", "stalker", "zealot", "zergling")
SHIELDS = {"colossus": 150.0, "stalker": 80.0, "zealot": 50.0}
ENEMY_SHIELDS = {4: 150.0, 74: 80.0, 73: 50.0}


class ScriptedController:
    """The part of pysc2's RemoteController that StarCraft2Env calls."""

    def __init__(self, map_name: str, enemy_damage: float = 1.0):
        self._armies = ARMIES.get(map_name, ([], []))  # SMACv2's map is empty
        self._enemy_damage = enemy_damage
        self._next_tag = 1
        self.units: dict[int, Unit] = {}
        self.games_created = 0

    def create_game(self, request) -> None:
        self.games_created += 1
        self._spawn()

    def join_game(self, request) -> None: ...

    def game_info(self):
        from s2clientprotocol import common_pb2, raw_pb2

        start = raw_pb2.StartRaw(
            map_size=common_pb2.Size2DI(x=SIZE, y=SIZE),
            playable_area=common_pb2.RectangleI(p0=common_pb2.PointI(x=0, y=0), p1=common_pb2.PointI(x=SIZE, y=SIZE)),
            pathing_grid=common_pb2.ImageData(bits_per_pixel=1, data=b"\xff" * (SIZE * SIZE // 8)),
            terrain_height=common_pb2.ImageData(bits_per_pixel=8, data=b"\x7f" * (SIZE * SIZE)),
        )
        return SimpleNamespace(start_raw=start)

    def observe(self):
        from s2clientprotocol import common_pb2, raw_pb2

        units = [
            raw_pb2.Unit(
                tag=u.tag,
                owner=u.owner,
                unit_type=u.unit_type,
                pos=common_pb2.Point(x=u.x, y=u.y, z=0),
                health=u.health,
                health_max=u.health_max,
                shield=u.shield,
                shield_max=u.shield_max,
                weapon_cooldown=u.cooldown,
            )
            for u in self.units.values()
        ]
        return SimpleNamespace(observation=SimpleNamespace(raw_data=SimpleNamespace(units=units)))

    def actions(self, request) -> None:
        for action in request.actions:
            command = action.action_raw.unit_command
            goal = (command.target_world_space_pos.x, command.target_world_space_pos.y)
            target = command.target_unit_tag if command.ability_id == ATTACK else goal
            for tag in command.unit_tags:
                if tag in self.units:
                    self.units[tag].order = (command.ability_id, target)

    def data(self):
        return SimpleNamespace(units=range(N_TYPES))

    def debug(self, commands) -> None:
        for command in commands:
            for tag in command.kill_unit.tag:
                self.units.pop(tag, None)
            if command.HasField("create_unit"):
                self._create(command.create_unit)

    def _create(self, wanted) -> None:
        own = wanted.unit_type - (N_TYPES - len(SMACV2_TYPES))
        shield = SHIELDS.get(SMACV2_TYPES[own], 0.0) if wanted.owner == 1 else ENEMY_SHIELDS.get(wanted.unit_type, 0.0)
        self._add(wanted.owner, wanted.unit_type, 100.0, shield, wanted.pos.x, wanted.pos.y)

    def step(self, loops: int) -> None:
        for _ in range(loops):
            if not self.units:
                self._spawn()
            self._loop()

    def _loop(self) -> None:
        hits: list[tuple[int, float]] = []
        for unit in self.units.values():
            unit.cooldown = max(0.0, unit.cooldown - 1.0)
            kind, target = unit.order if unit.owner == 1 else (ATTACK, self._nearest(unit))
            if kind == MOVE:
                self._walk(unit, *target)
            elif kind == ATTACK and target in self.units:
                foe = self.units[target]
                if math.hypot(foe.x - unit.x, foe.y - unit.y) > 5.0:
                    self._walk(unit, foe.x, foe.y)
                elif unit.cooldown == 0.0:
                    unit.cooldown = 8.0
                    hits.append((target, 6.0 if unit.owner == 1 else 6.0 * self._enemy_damage))
        for tag, damage in hits:
            self._hurt(tag, damage)

    def _nearest(self, unit: Unit) -> int | None:
        foes = [u for u in self.units.values() if u.owner == 1]
        return min(foes, key=lambda u: (math.hypot(u.x - unit.x, u.y - unit.y), u.tag)).tag if foes else None

    @staticmethod
    def _walk(unit: Unit, x: float, y: float) -> None:
        gap = math.hypot(x - unit.x, y - unit.y)
        stride = min(gap, 0.15)
        if gap > 0:
            unit.x = min(max(unit.x + (x - unit.x) / gap * stride, 1.0), SIZE - 1.5)
            unit.y = min(max(unit.y + (y - unit.y) / gap * stride, 1.0), SIZE - 1.5)

    def _hurt(self, tag: int, damage: float) -> None:
        if tag not in self.units:
            return
        unit = self.units[tag]
        absorbed = min(unit.shield, damage)
        unit.shield -= absorbed
        unit.health -= damage - absorbed
        if unit.health <= 0:
            del self.units[tag]

    def _spawn(self) -> None:
        for owner, army, x in ((1, self._armies[0], 11.0), (2, self._armies[1], 19.0)):
            for row, (unit_type, health, shield) in enumerate(army):
                self._add(owner, unit_type, health, shield, x, 14.0 + row * 1.25)

    def _add(self, owner: int, unit_type: int, health: float, shield: float, x: float, y: float) -> None:
        tag, self._next_tag = self._next_tag, self._next_tag + 1
        self.units[tag] = Unit(tag, owner, unit_type, x, y, health, health, shield, shield)


class ScriptedGame:
    """What pysc2's run configuration starts: a process with a controller."""

    def __init__(self, map_name: str, enemy_damage: float):
        self.controller = ScriptedController(map_name, enemy_damage)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class ScriptedRunConfig:
    """Stands in for `pysc2.run_configs.get()`."""

    def __init__(self, map_name: str, enemy_damage: float = 1.0):
        self._map_name, self._enemy_damage = map_name, enemy_damage
        self.version = None
        self.games: list[ScriptedGame] = []

    def start(self, **_: object) -> ScriptedGame:
        self.games.append(ScriptedGame(self._map_name, self._enemy_damage))
        return self.games[-1]

    def map_data(self, path: str) -> bytes:
        return b"map"


def install() -> None:
    """Stand in the place of the game in this interpreter; SC2_SCRIPT reads "map:enemy damage"."""
    from pysc2 import run_configs

    map_name, _, enemy_damage = os.environ["SC2_SCRIPT"].partition(":")
    config = ScriptedRunConfig(map_name, float(enemy_damage))
    run_configs.get = lambda version=None: config
