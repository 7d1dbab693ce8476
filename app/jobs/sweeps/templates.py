"""Sweep files that come with the program: the paper's studies, and small ones for a laptop."""

from importlib.resources import files
from pathlib import Path

from app.jobs.sweeps.file import SweepFile, parse_sweep, read_sweep_file

_FOLDER = files("app.jobs.sweeps").joinpath("templates")


def list_templates() -> dict[str, SweepFile]:
    """List every template by name: those of the demo first, then the paper's."""
    names = sorted(
        (each.name.removesuffix(".toml") for each in _FOLDER.iterdir() if each.name.endswith(".toml")),
        key=lambda name: (not name.endswith("-demo"), name),
    )
    return {name: parse_sweep(read_template(name)) for name in names}


def read_template(name: str) -> str:
    """Read the text of a template.

    Raises:
        FileNotFoundError: If there is none of that name.
    """
    return _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")


def find_sweep_file(file: str) -> SweepFile:
    """Read a template by its name, or a file by its path.

    Raises:
        ConfigError: If the file cannot be read; one sentence per fault.
    """
    if f"{file}.toml" in {each.name for each in _FOLDER.iterdir()} and not Path(file).is_file():
        return parse_sweep(read_template(file))
    return read_sweep_file(Path(file))
