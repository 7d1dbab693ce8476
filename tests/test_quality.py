"""Format, lint, types and the direction of imports: the checks that hold for every file."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check", "."], id="lint"),
        pytest.param(["ruff", "format", "--check", "."], id="format"),
        pytest.param(["lint-imports"], id="imports"),
        pytest.param(["pyright"], id="types", marks=pytest.mark.ci),
    ],
)
def test_the_tree_passes_its_own_checks(command: list[str]) -> None:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("page", sorted(ROOT.glob("pages/*.py")), ids=lambda page: page.stem)
def test_no_page_has_a_text_below_a_constant_because_streamlit_would_show_it(page: Path) -> None:
    statements = ast.parse(page.read_text(encoding="utf-8")).body[1:]  # without the docstring
    assert not [
        part.lineno for part in statements if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
    ]


def test_no_file_needs_itself_by_a_detour() -> None:
    graph = grimp.build_graph("app", "emtc_core", "pages", "storage")  # late imports count too
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # refuses a cycle by its names
