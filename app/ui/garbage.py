"""Keep Python's full garbage collections short. Streamlit starts one after every rerun of a page or a fragment.

A full collection visits every object and stops all threads meanwhile. The imported modules of a few pages have 270,000
objects: a rerun of the page Live takes 245 ms if they are visited, and 78 ms if they are not.
"""

import gc
import sys

_n_frozen_modules = 0


def freeze_imported_modules() -> None:
    """Exclude all existing objects, mostly those of imported modules, from later collections.

    Does nothing if no module was imported since the last call. Reference counting still frees excluded objects; only
    unreachable cycles among them stay in memory.
    """
    global _n_frozen_modules
    if len(sys.modules) > _n_frozen_modules:
        _n_frozen_modules = len(sys.modules)
        gc.collect()  # before the freeze, because frozen garbage is never freed
        gc.freeze()
