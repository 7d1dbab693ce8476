"""Fixtures that every test may use."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "2")
