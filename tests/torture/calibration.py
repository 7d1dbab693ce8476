"""Start `tests.reference.calibration`: `python -m tests.torture.calibration --json`."""

import sys

from tests.reference.calibration import main

if __name__ == "__main__":
    sys.exit(main())
