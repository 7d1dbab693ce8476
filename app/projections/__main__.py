"""`EMTC_DB=URL python -m app.projections --job ID`: the background process of one projection."""

import argparse
import os

from app.projections.jobs import work
from storage.engine import open_database


def main() -> None:
    """Do the job that the command line names."""
    parser = argparse.ArgumentParser(prog="app.projections")
    parser.add_argument("--job", required=True, type=int)
    arguments = parser.parse_args()
    work(open_database(os.environ["EMTC_DB"]), arguments.job)


if __name__ == "__main__":
    main()
