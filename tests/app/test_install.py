"""Hints name commands that work: no index has this project, so no hint may name it as a package."""

import re
import tomllib
from pathlib import Path

import pytest

from emtc_core import install

ROOT = Path(__file__).parents[2]


def test_no_text_names_a_package_that_no_index_has():
    tops = ("app", "emtc_core", "pages", "storage")
    texts = [file for top in tops for kind in ("py", "md") for file in (ROOT / top).rglob(f"*.{kind}")]
    named = re.compile(r"pip install [^\n]*\bemtc-lab\b|emtc-lab\[")
    assert [file.name for file in (*texts, ROOT / "README.md") if named.search(file.read_text())] == []


def test_a_checkout_installs_its_extra_from_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install.how_to_install("gpu") == 'pip install -e ".[gpu]"'
    monkeypatch.chdir(tmp_path)
    assert install.how_to_install("gpu") == f'pip install -e "{ROOT}[gpu]"'
    assert install.how_to_upgrade() == f"git -C {ROOT} pull"


def test_beside_a_wheel_the_packages_of_the_extra_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(install, "CHECKOUT", tmp_path)
    on_linux = "faiss-gpu>=1.15; (sys_platform == 'linux' and platform_machine == 'x86_64') and extra == 'gpu'"
    declared = ["torch>=2.11", "apprise>=1.8; extra == 'alerts'", 'psycopg[binary]>=3.2; extra == "postgres"', on_linux]
    monkeypatch.setattr(install, "requires", lambda name: declared)
    assert install.how_to_install("alerts") == "pip install 'apprise>=1.8'"
    assert install.how_to_install("gpu") == "pip install 'faiss-gpu>=1.15'"
    assert install.how_to_install("postgres") == "pip install 'psycopg[binary]>=3.2'"
    assert "wheel" in install.how_to_upgrade()


@pytest.mark.parametrize("extra", ["gpu", "smax", "pettingzoo", "zoo", "alerts", "ray", "postgres", "files"])
def test_every_extra_that_a_hint_names_exists(extra):
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
