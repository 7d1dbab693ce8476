"""Every named figure and table: what the modules of `app.figures.named` list."""

from importlib import import_module
from pkgutil import iter_modules

from app.figures import named
from app.figures.figure import FigureKind, TableKind

_MODULES = [import_module(f"{named.__name__}.{each.name}") for each in iter_modules(named.__path__)]
FIGURES: dict[str, FigureKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "FIGURES", ())}
TABLES: dict[str, TableKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "TABLES", ())}
