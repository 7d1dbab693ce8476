"""Every named figure and table: what the modules of `app.figures.named` list."""

from importlib import import_module
from pkgutil import iter_modules

from app.figures import named
from app.figures.figure import FigureKind, TableKind
from emtc_core.errors import ConfigError

_MODULES = [import_module(f"{named.__name__}.{each.name}") for each in iter_modules(named.__path__)]
FIGURES: dict[str, FigureKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "FIGURES", ())}
TABLES: dict[str, TableKind] = {kind.name: kind for module in _MODULES for kind in getattr(module, "TABLES", ())}


def find_figure(name: str) -> FigureKind:
    """Get a figure by its name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in FIGURES:
        raise ConfigError(f"A figure is one of {', '.join(sorted(FIGURES))}, got {name!r}.")
    return FIGURES[name]


def figures_of(page: str) -> list[FigureKind]:
    """List the figures that a page offers beside those that it draws with widgets of its own."""
    return [kind for kind in FIGURES.values() if page in kind.pages]
