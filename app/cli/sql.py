"""`emtc sql`: a question in SQL that only reads, capped in rows and in time."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from app.analysis.tables import NO_PARQUET, export_table, writes_parquet
from app.cli.output import DEFAULT_DATABASE, AsJson, DatabaseUrl, print_json, print_table, say
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.sql_console.glossary import describe_schema
from storage.sql_console.question import MOST_ROWS, MOST_SECONDS, ROWS, SECONDS, Answer, ask

Schema = Annotated[bool, typer.Option("--schema", help="List the tables and columns instead, and what they mean")]


def sql(
    query: Annotated[str, typer.Argument(metavar="[QUERY]", help="One statement that reads, as a SELECT")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV")] = False,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a Parquet file")] = None,
    limit: Annotated[int, typer.Option(help=f"Rows at most, up to {MOST_ROWS:,}")] = ROWS,
    seconds: Annotated[float, typer.Option(help=f"Time at most, up to {MOST_SECONDS:.0f}")] = SECONDS,
    schema: Schema = False,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """Ask the database in SQL; nothing is written, whatever is asked."""
    if sum((csv, json, parquet is not None)) > 1:
        raise typer.BadParameter("Give at most one of --csv, --json and --parquet.")
    if schema:
        _show_schema(json=json)
        return
    if parquet is not None and not writes_parquet():
        raise ConfigError(NO_PARQUET)
    answer = ask(open_database(db, read_only=True), query, most_rows=limit, seconds=seconds)
    if parquet is not None:
        _write(export_table(answer.frame(), "parquet"), parquet)
    elif csv:
        sys.stdout.buffer.write(export_table(answer.frame(), "csv"))
    elif json:
        print_json(_rows(answer))
    else:
        print_table(_rows(answer), title="", empty="No row answers this.")
    if answer.cut:
        say(f"{answer.cut} See more with --limit.")


def _rows(answer: Answer) -> list[dict[str, object]]:
    names = [str(name) for name in answer.frame().columns]
    return [dict(zip(names, row, strict=True)) for row in answer.rows]


def _show_schema(*, json: bool) -> None:
    tables = describe_schema()
    if json:
        print_json([asdict(table) for table in tables])
        return
    for table in tables:
        rows = [asdict(column) for column in table.columns]
        print_table(rows, title=f"{table.name}: {table.meaning}", empty="")


def _write(content: bytes, out: Path) -> None:
    try:
        out.write_bytes(content)
    except OSError as exc:
        raise ConfigError(f"{out} cannot be written: {exc.strerror}. Choose another file.") from exc
    say(f"Wrote {out} ({len(content):,} bytes).")
