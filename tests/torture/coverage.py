"""Start `tests.reference.coverage`: `python -m tests.torture.coverage --json`."""

import sys

from tests.reference.coverage import main

if __name__ == "__main__":
    sys.exit(main())
