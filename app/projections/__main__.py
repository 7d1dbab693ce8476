"""`python -m app.projections --db URL --job ID`: the background process of one projection."""

import argparse

from app.projections.jobs import work
from storage.engine import open_database


def main() -> None:
    """Do the job that the command line names."""
    parser = argparse.ArgumentParser(prog="app.projections")
    parser.add_argument("--db", required=True)
    parser.add_argument("--job", required=True, type=int)
    arguments = parser.parse_args()
    work(open_database(arguments.db), arguments.job)


if __name__ == "__main__":
    main()
