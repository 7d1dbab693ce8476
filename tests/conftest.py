"""Set before anything loads OpenMP: waiting threads sleep, as in the trainers that `emtc` starts."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
settings.register_profile("busy", deadline=None)  # a busy machine is no fault of an example
settings.load_profile("busy")
