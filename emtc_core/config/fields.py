"""All settings with their keys: descriptions for forms and help texts, former keys and former defaults."""

from collections.abc import Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel

from emtc_core.config.base import FormerDefault, FormerKey
from emtc_core.config.plugin_settings import MIXER, ORIGINS, argument_fields, find_owner, list_choices
from emtc_core.config.run import RunConfig, list_algos
from emtc_core.config.values import FieldInfo

INIT_DESIRABILITY = "memory.init_desirability"
"""The setting that also accepts the text "emu_table"."""


def list_keys() -> set[str]:
    """List the keys of all settings, with the arguments of plug-ins."""
    return {key for key, _ in _list_fields()}


def _list_fields() -> Iterable[tuple[str, Any]]:
    yield from _walk_fields(RunConfig, "")
    yield from argument_fields()


def describe_fields() -> list[FieldInfo]:
    """List all settings in the order of declaration, with arguments of plug-ins at the end of their section."""
    fields = [_make_field_info(key, field) for key, field in _list_fields()]
    sections = list(dict.fromkeys(info.key.partition(".")[0] for info in fields))
    return sorted(fields, key=lambda info: sections.index(info.key.partition(".")[0]))


def find_former_default(key: str) -> FormerDefault | None:
    """Return the value of a setting in stored runs without the setting; None if all runs store the setting."""
    return list_former_defaults().get(current_key(key))


def current_key(key: str) -> str:
    """Return the current key of a setting for a current or former key."""
    return _list_former_keys().get(key, key)


def stored_keys(key: str) -> tuple[str, ...]:
    """List all keys under which runs have stored a setting, the current key first."""
    current = current_key(key)
    return (current, *(former for former, renamed in _list_former_keys().items() if renamed == current))


@cache
def list_former_defaults() -> dict[str, FormerDefault]:
    """Return current key → value of the setting in runs without it, for all settings that have one."""
    fields = _walk_fields(RunConfig, "")
    return {key: note for key, field in fields for note in field.metadata if isinstance(note, FormerDefault)}


@cache
def _list_former_keys() -> dict[str, str]:
    """Return former key → current key."""
    fields = _walk_fields(RunConfig, "")
    return {note.key: key for key, field in fields for note in field.metadata if isinstance(note, FormerKey)}


def rename_keys(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Replace former keys of settings by the current ones."""
    return {current_key(key): value for key, value in flat.items()}


def _walk_fields(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, Any]]:
    """List (dotted key, pydantic field) of all settings of a model and its sections."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if not prefix and name in (ORIGINS, MIXER):
            continue
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk_fields(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}", field


def _make_field_info(key: str, field: Any) -> FieldInfo:
    annotation, metadata, optional, words = _unwrap(field.annotation, list(field.metadata))
    choices = tuple(str(c) for c in get_args(annotation)) if get_origin(annotation) is Literal else ()
    choices = tuple(list_algos()) if key == "algo" else list_choices(key) or choices
    lows = [m.ge if isinstance(m, Ge) else m.gt for m in metadata if isinstance(m, Ge | Gt)]
    highs = [m.le if isinstance(m, Le) else m.lt for m in metadata if isinstance(m, Le | Lt)]
    text = field.description or (f"Argument {key.rpartition('.')[2]}." if find_owner(key) else "")
    unit = text[text.rfind("[") + 1 : text.rfind("]")] if "[" in text else ""
    kind = "choice" if choices else getattr(annotation, "__name__", "str")
    return FieldInfo(
        key=key,
        type=kind if kind in ("int", "float", "bool", "str", "choice") else "str",
        default=None if field.is_required() else field.default,
        minimum=float(lows[0]) if lows else None,  # type: ignore[arg-type]  # bounds here are numbers
        maximum=float(highs[0]) if highs else None,  # type: ignore[arg-type]
        choices=choices,
        unit=unit,
        description=text,
        optional=optional,
        minimum_open=any(isinstance(m, Gt) for m in metadata),
        words=("emu_table",) if key == INIT_DESIRABILITY else words,
    )


def _unwrap(annotation: Any, metadata: list[Any]) -> tuple[Any, list[Any], bool, tuple[str, ...]]:
    """Split an annotation into its plain type, its metadata, whether it is optional, and texts that it also accepts.

    `Optional` and `Annotated` are removed. Pydantic stores the outermost metadata in the field: the argument `metadata`.
    """
    optional, words = False, ()
    if get_origin(annotation) in (Union, UnionType):
        inner = [a for a in get_args(annotation) if a is not type(None)]
        words = tuple(
            str(word) for literal in inner[1:] if get_origin(literal) is Literal for word in get_args(literal)
        )
        optional, annotation = len(inner) < len(get_args(annotation)), inner[0]
    if hasattr(annotation, "__metadata__"):
        for extra in annotation.__metadata__:
            metadata.extend(getattr(extra, "metadata", [extra]))
        annotation = annotation.__origin__
    return annotation, metadata, optional, words
