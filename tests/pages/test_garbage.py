"""Imported modules are frozen once, and again after further imports; nothing is frozen in tests of pages."""

import gc
import subprocess
import sys

from app.ui import garbage
from tests.pages.test_pages import open_page

SCRIPT = """
import gc
import sys
from app.ui.garbage import _FreezeAfterImports
gc.callbacks.append(_FreezeAfterImports())
gc.collect()
first = gc.get_freeze_count()
import asyncio, http.server, unittest.mock, xml.dom.minidom
gc.collect()
second = gc.get_freeze_count()
objects = [[] for _ in range(1000)]
gc.collect()
print(first, second, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_imported_modules_are_frozen_once_and_again_after_further_imports():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    first, second, third, unfrozen = (int(word) for word in done.stdout.split())
    assert first > 10_000
    assert second > first
    assert third <= second  # new objects without new modules are not frozen
    assert 1000 <= unfrozen < 5000


def test_a_page_in_a_test_freezes_nothing(empty):
    garbage.freeze_imported_modules.clear()
    before = list(gc.callbacks)
    assert not open_page("home").exception
    assert gc.callbacks == before
