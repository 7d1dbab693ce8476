"""Set before anything loads OpenMP: waiting threads sleep, as in the trainers that `emtc` starts."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
