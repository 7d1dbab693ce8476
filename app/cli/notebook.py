"""`emtc notebook`: list the entries of the research notebook, and export them.

An entry has a title and a text. An entry made with Pin on a page also has the figure and the view of that page.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.arguments import DEFAULT_DATABASE, AsJson, DatabaseUrl, check_choice
from app.cli.output import print_json, print_message, print_table, write_file
from app.notebook.export import NOTEBOOK_FORMATS, export_entries, to_files
from app.notebook.view import read_entries
from emtc_core.errors import ConfigError
from storage.engine import open_database
from storage.notebook import EntryRow, list_entries

app = typer.Typer(help="List the entries of the research notebook, or export them.", invoke_without_command=True)


@app.callback()
def notebook(
    context: typer.Context,
    search: Annotated[str, typer.Option(help="Only entries that contain all of these words in title or text")] = "",
    run: Annotated[str | None, typer.Option(help="Only entries that cite the run with this id")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
    json: AsJson = False,
) -> None:
    """List the entries, newest first."""
    if context.invoked_subcommand is not None:
        return
    rows = list_entries(open_database(db, read_only=True), text=search, run_id=run)
    if json:
        print_json([_summarize(row) | {"body": row.body, "view": row.view} for row in rows])
        return
    print_table(
        [_summarize(row) for row in rows],
        title="Notebook",
        empty="No entries. Press Pin at a figure in the app, or write an entry on its page Notebook.",
    )


@app.command()
def export(
    context: typer.Context,
    entries: Annotated[list[int] | None, typer.Argument(metavar="[ENTRY]…", help="Ids; default: all")] = None,
    format: Annotated[str, typer.Option(help="md, html or ipynb; default: by the file extension of --out")] = "",
    out: Annotated[Path | None, typer.Option(help="File to write; Markdown: a .zip, or a .md and a folder")] = None,
    address: Annotated[str | None, typer.Option(help="URL of the app, for links to the views")] = None,
    db: DatabaseUrl = DEFAULT_DATABASE,
) -> None:
    """Write entries with their figures as Markdown, as one HTML page or as a Jupyter notebook."""
    if out is None:
        raise typer.BadParameter("export needs --out FILE.")
    extension = out.suffix.removeprefix(".")
    default_format = "md" if extension == "zip" else extension
    file_format = check_choice("format", format or default_format, NOTEBOOK_FORMATS)
    database = open_database(_choose_database(context, db), read_only=True)
    entry_ids = entries or [row.id for row in list_entries(database)]
    if not entry_ids:
        raise ConfigError("The notebook is empty", hint="Press Pin at a figure in the app first.")
    if file_format == "md" and extension == "md":
        text, figure_files = to_files(read_entries(database, entry_ids), address=address)
        for name, content in figure_files.items():
            write_file(out.parent / name, content)
        write_file(out, text.encode())
    else:
        write_file(out, export_entries(database, entry_ids, file_format, address=address))
    print_message(f"Wrote {out}: {len(entry_ids)} {'entry' if len(entry_ids) == 1 else 'entries'}.")


def _summarize(row: EntryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "created_at": row.created_at.isoformat(timespec="seconds"),
        "updated_at": row.updated_at.isoformat(timespec="seconds"),
        "title": row.title,
        "runs": " ".join(str(run.get("id", "")) for run in row.cited_runs),
        "page": (row.view or {}).get("page"),
        "figure": (row.view or {}).get("figure") if row.has_figure else None,
    }


def _choose_database(context: typer.Context, db: str) -> str:
    """Return the value of --db after `export`. If it is not given there, return its value before `export`."""
    source = context.get_parameter_source("db")
    is_given = source is not None and source.name != "DEFAULT"
    if is_given or context.parent is None:
        return db
    return context.parent.params["db"]
