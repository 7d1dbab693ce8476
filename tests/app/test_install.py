"""Hints name commands that work: no index has this project, so no hint may name it as a package."""

import json
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from emtc_core import install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_no_text_names_a_package_that_no_index_has():
    tops = ("app", "emtc_core", "pages", "storage")
    texts = [file for top in tops for kind in ("py", "md") for file in (ROOT / top).rglob(f"*.{kind}")]
    named = re.compile(r"pip install [^\n]*\bemtc-lab\b|emtc-lab\[")
    assert [file.name for file in (*texts, ROOT / "README.md") if named.search(file.read_text())] == []


def test_a_checkout_installs_its_extra_from_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install.get_install_command("gpu") == 'pip install -e ".[gpu]"'
    monkeypatch.chdir(tmp_path)
    assert install.get_install_command("gpu") == f'pip install -e "{ROOT}[gpu]"'
    assert install.get_upgrade_command() == f"git -C {ROOT} pull"


def test_beside_a_wheel_the_packages_of_the_extra_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)
    on_linux = "faiss-gpu>=1.15; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'gpu'"
    declared = ["torch>=2.11", "apprise>=1.8; extra == 'alerts'", 'psycopg[binary]>=3.2; extra == "postgres"', on_linux]
    monkeypatch.setattr(install, "requires", lambda name: declared)
    assert install.get_install_command("alerts") == "pip install 'apprise>=1.8'"
    assert install.get_install_command("gpu") == "pip install 'faiss-gpu>=1.15'"
    assert install.get_install_command("postgres") == "pip install 'psycopg[binary]>=3.2'"
    assert "wheel" in install.get_upgrade_command()


def test_every_extra_that_a_hint_names_exists():
    texts = [file.read_text() for top in ("app", "emtc_core", "storage") for file in (ROOT / top).rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"get_install_command\(\"(\w+)\"\)", text)}
    assert {"gpu", "alerts"} <= named <= PROJECT["optional-dependencies"].keys()


def requirements(name: str) -> list[str]:
    """List every requirement of a package that installation files and guide pages write, as pip reads it."""
    texts = [ROOT / "Dockerfile", ROOT / "app" / "guide" / "gpu.md"]
    return [each for text in texts for each in re.findall(rf'"({name}[<>=][^"]+)"', text.read_text())]


def test_torch_is_installed_first_in_the_range_of_the_project():
    (wanted,) = [each for each in PROJECT["dependencies"] if each.startswith("torch")]
    allowed = Requirement(wanted).specifier
    named = [Requirement(each).specifier for each in requirements("torch")]
    assert len(named) >= 4
    for minor in range(20):
        assert all(f"2.{minor}.0" in allowed for each in named if f"2.{minor}.0" in each)
    unpinned = re.compile(r"pip install (?:--no-cache-dir )?(?:\$TORCH )?torch\b")
    assert not unpinned.search((ROOT / "Dockerfile").read_text())


CU126 = {"nvidia-cublas-cu12": "12.6.4.1", "nvidia-cuda-runtime-cu12": "12.6.77", "nvidia-curand-cu12": "10.3.7.77"}
"""Versions that torch's wheels of the index cu126 require."""


@pytest.mark.slow
def test_the_extra_gpu_resolves_to_libraries_of_the_cuda_that_torch_brings(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if subprocess.run([*pip, "index", "versions", "faiss-gpu"], capture_output=True, check=False).returncode:
        pytest.skip("no package index can be reached")
    constraints, report = tmp_path / "constraints.txt", tmp_path / "report.json"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in CU126.items()))
    options = ["--dry-run", "--ignore-installed", "--quiet", "-c", str(constraints), "--report", str(report)]
    done = subprocess.run([*pip, "install", *options, f"{ROOT}[gpu]"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {each["metadata"]["name"]: each["metadata"] for each in json.loads(report.read_text())["install"]}
    if sys.platform != "linux" or platform.machine() != "x86_64":
        assert "faiss-gpu" not in found
        return
    assert Version(found["faiss-gpu"]["version"]) >= Version("1.15")
    assert {name: found[name]["version"] for name in CU126} == CU126
    assert "nvidia-ml-py" in found
