"""What the app keeps out of the search for garbage: loaded libraries, once each, and nothing where a page is tested."""

import gc
import subprocess
import sys

from app.ui import garbage
from tests.pages.test_pages import open_page

LOADING = """
import gc
import sys
from app.ui.garbage import _Sparing
gc.callbacks.append(_Sparing())
gc.collect()
first = gc.get_freeze_count()
import asyncio, http.server, unittest.mock, xml.dom.minidom
gc.collect()
second = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
gc.collect()
print(first, second, gc.get_freeze_count(), len(gc.get_objects()))
"""


def test_what_was_loaded_is_set_aside_once_and_again_after_further_loading():
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=True)
    first, second, third, left = (int(word) for word in done.stdout.split())
    assert first > 10_000
    assert second > first
    assert third <= second  # objects came, no modules: they are looked through as ever
    assert 1000 <= left < 5000


def test_a_page_in_a_test_leaves_all_within_reach_of_a_search(empty):
    garbage.spare_libraries.clear()
    before = list(gc.callbacks)
    assert not open_page("home").exception
    assert gc.callbacks == before
