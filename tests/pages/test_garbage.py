"""Imported modules are frozen once, and again after further imports."""

import subprocess
import sys

SCRIPT = """
import gc
from app.ui.garbage import freeze_imported_modules
freeze_imported_modules()
first = gc.get_freeze_count()
import asyncio, http.server, unittest.mock, xml.dom.minidom
freeze_imported_modules()
second = gc.get_freeze_count()
objects = [[] for _ in range(1000)]
freeze_imported_modules()
print(first, second, gc.get_freeze_count())
"""


def test_imported_modules_are_frozen_once_and_again_after_further_imports() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    first, second, third = (int(word) for word in done.stdout.split())
    assert second > first > 0
    assert third <= second  # objects that were created without an import are not frozen
