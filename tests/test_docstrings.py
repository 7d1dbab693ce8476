"""Check that the public names of `emtc_core` and `storage` document their arrays, arguments and errors.

A function that takes or returns an array, a tensor or a frame states three things in its docstring, and each array
argument has its shape and unit in its entry under "Args:":

* shape: dimension letters in brackets ([B, T, N]), or "shape", "scalar", or for a frame "one row per run";
* unit: one of `UNITS` in brackets ([return], [env steps], [unit varies]), or one of `UNIT_WORDS`;
* source: "Eq. 8", "Algorithm 2", "Proposition 1" or "Source: ...", which names the code base, the paper, the format or
  the function that defines the result. "Source: implementation detail." marks a function that only stores or selects
  values.

A dataclass, NamedTuple or model with array fields states the source in its docstring, and the shape and unit of each
array field next to the field (or in the docstring, if all are the same). Functions that take the whole object need not
repeat them. A method without a docstring has to override a documented one.
"""

import ast
import builtins
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    str(path.relative_to(ROOT)): path
    for package in ("emtc_core", "storage")
    for path in sorted((ROOT / package).rglob("*.py"))
    if "versions" not in path.parts and not path.name.startswith("_")
}
ARRAYS = {"ndarray", "NDArray", "ArrayLike", "Tensor", "DataFrame", "Series"}
RECORDS = {"dataclass", "NamedTuple", "TypedDict", "BaseModel", "Protocol"}
UNITS = (
    "return", "reward", "loss", "logits", "log probability", "nats", "state features", "observation features",
    "embedding", "normalized embedding", "env steps", "steps", "episodes", "updates", "visits", "nodes", "rows",
    "seconds", "s", "UTC", "map units", "unit varies",
)  # fmt: skip
UNIT_WORDS = ("dimensionless", "bytes", "seconds", "boolean", "index", "indices", "probability", "probabilities")
SHAPE = re.compile(r"\[[A-Z*\d.][^\[\]]*\]|\b(?i:shapes?|scalars?|one row per)\b")
UNIT = re.compile(rf"\[(?:{'|'.join(UNITS)})(?:[,;^²³ ][^\[\]]*)?\]|\b(?i:{'|'.join(UNIT_WORDS)})\b")
ENTRY = re.compile(r"^    \*{0,2}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
SOURCE = re.compile(r"\bEqs?\. \d|\bAlgorithm [123]\b|\bProposition [12]\b|\bSource: \S")


class Function(NamedTuple):
    """A public function or method, with the class that contains it."""

    node: ast.FunctionDef
    owner: ast.ClassDef | None


@pytest.mark.parametrize("name", FILES)
def test_public_names_document_arrays_arguments_and_errors(name: str) -> None:
    path = FILES[name]
    faults = [fault for function in list_functions(path) for fault in list_function_faults(path, function)]
    faults += [fault for owner in list_classes(path) for fault in list_record_faults(path, owner)]
    assert faults == []


def list_function_faults(path: Path, function: Function) -> list[str]:
    """Describe what the docstring of one function lacks, one text per fault."""
    node, owner = function
    where = f"{node.lineno} {owner.name + '.' if owner else ''}{node.name}"
    text = ast.get_docstring(node)
    if text is None:
        return [] if owner and is_override(owner, node.name) else [f"{where}: docstring"]
    variadic = [argument for argument in (node.args.vararg, node.args.kwarg) if argument]
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *variadic]
    arguments = [argument for argument in arguments if argument.arg not in ("self", "cls")]
    annotations = [argument.annotation for argument in arguments] + [node.returns]
    faults = list_array_faults(text) if any(has_array(path, annotation) for annotation in annotations) else []
    described = dict(ENTRY.findall(re.split(r"\n(?:Returns|Yields|Raises):", text.partition("Args:")[2])[0]))
    for argument in arguments:
        entry, is_array = described.get(argument.arg, ""), has_array(path, argument.annotation)
        if (is_array or len(arguments) >= 3) and not entry:
            faults.append(f"Args: {argument.arg}")
        elif is_array and not (SHAPE.search(entry) and UNIT.search(entry)):
            faults.append(f"shape and unit of {argument.arg}")
    raised = re.findall(r"^    (\w+): ", text.partition("Raises:")[2], re.MULTILINE)
    if has_raise(node) and not raised:
        faults.append("Raises")
    faults += [f"Raises: {name} does not exist" for name in raised if name not in find_errors()]
    return [f"{where}: {fault}" for fault in faults]


def list_record_faults(path: Path, owner: ast.ClassDef) -> list[str]:
    """Describe what a class with array fields does not document, one text per fault."""
    kinds = {name for part in (*owner.decorator_list, *owner.bases) for name in list_names(part)}
    fields = [field for field in owner.body if isinstance(field, ast.AnnAssign)]
    if not kinds & RECORDS or not any(has_array(path, field.annotation) for field in fields):
        return []
    docstring = ast.get_docstring(owner) or ""
    faults = [] if SOURCE.search(docstring) else ["source"]
    for field, following in zip(owner.body, [*owner.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and has_array(path, field.annotation):
            end = following.end_lineno if isinstance(following, ast.Expr) else field.end_lineno
            text = docstring + read_comments(path, field.lineno, end or field.lineno)
            faults += (
                [] if SHAPE.search(text) and UNIT.search(text) else [f"shape and unit of {ast.unparse(field.target)}"]
            )
    return [f"{owner.lineno} {owner.name}: {fault}" for fault in faults]


def read_comments(path: Path, first: int, last: int) -> str:
    """Return the comments and strings of some lines of a file."""
    with path.open("rb") as file:
        tokens = [token for token in tokenize.tokenize(file.readline) if first <= token.start[0] <= last]
    return "\n".join(token.string for token in tokens if token.type in (tokenize.COMMENT, tokenize.STRING))


def list_array_faults(text: str) -> list[str]:
    """Name the statements about arrays that a text lacks."""
    patterns = {"shape": SHAPE, "unit": UNIT, "source": SOURCE}
    return [name for name, pattern in patterns.items() if not pattern.search(text)]


def list_functions(path: Path) -> Iterator[Function]:
    """Yield the public functions of a module and the public methods of its public classes."""
    for owner in (None, *list_classes(path)):
        for node in (owner or parse(path)).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield Function(node, owner)


def list_classes(path: Path) -> list[ast.ClassDef]:
    """List the public classes of a module."""
    return [node for node in parse(path).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]


def has_raise(node: ast.AST) -> bool:
    """Return whether a function raises a new error in its own body, not in a nested function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and child.exc is not None:
            return True
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef) and has_raise(child):
            return True
    return False


def has_array(path: Path, annotation: ast.expr | None) -> bool:
    """Return whether an annotation contains an array type or an alias of one, such as `Slots = NDArray[np.int64]`."""
    if annotation is None:
        return False
    imports = [node for node in ast.walk(parse(path)) if isinstance(node, ast.ImportFrom) and node.module]
    imported = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if alias.name in find_aliases(FILES.get(f"{node.module.replace('.', '/')}.py", path))
    }
    attributes = {node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)}
    names = set(list_names(annotation))
    return bool(names & (ARRAYS | find_aliases(path) | imported) or attributes & all_aliases())


@cache
def all_aliases() -> frozenset[str]:
    """Collect the aliases of array types in all modules."""
    return frozenset().union(*map(find_aliases, FILES.values()))


@cache
def find_aliases(path: Path) -> frozenset[str]:
    """Collect the names to which one module assigns an array type."""
    types = (ast.Subscript, ast.Name, ast.Attribute, ast.BinOp)
    assignments = [node for node in parse(path).body if isinstance(node, ast.Assign) and isinstance(node.value, types)]
    arrays = [node for node in assignments if ARRAYS & set(list_names(node.value))]
    return frozenset(name for node in arrays for name in list_names(node.targets[0]))


def list_names(node: ast.AST) -> Iterator[str]:
    """Yield every identifier of an expression, including those of quoted annotations."""
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            yield child.id
        elif isinstance(child, ast.Attribute):
            yield child.attr
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield from re.findall(r"\w+", child.value)


def is_override(owner: ast.ClassDef, method: str) -> bool:
    """Return whether a base class in these packages documents a method of this name."""
    for base in [node for part in owner.bases for name in list_names(part) for node in find_classes().get(name, [])]:
        for node in base.body:
            if isinstance(node, ast.FunctionDef) and node.name == method and ast.get_docstring(node):
                return True
        if is_override(base, method):
            return True
    return False


@cache
def find_classes() -> dict[str, list[ast.ClassDef]]:
    """Map the name of every public class to its definitions."""
    classes: dict[str, list[ast.ClassDef]] = {}
    for owner in [owner for path in FILES.values() for owner in list_classes(path)]:
        classes.setdefault(owner.name, []).append(owner)
    return classes


@cache
def find_errors() -> frozenset[str]:
    """Collect the names of all built-in exceptions and of the classes of both packages."""
    return frozenset(find_classes()) | {name for name in dir(builtins) if name.endswith(("Error", "Exception"))}


@cache
def parse(path: Path) -> ast.Module:
    """Parse one source file."""
    return ast.parse(path.read_text(encoding="utf-8"))
