"""Measure the memory of the app over many page loads: `python -m tests.torture.page_loads --db sqlite:///runs/emtc.db`.

Five tabs open one page each, close it, and open the next. A load opens a session as a browser does, waits until the
script has finished, lets each part of the page that has a timer update once, and closes the session. The memory of an
app without a leak levels off when its caches are full.
"""

import argparse
import asyncio
import tempfile
from itertools import cycle, islice
from pathlib import Path

import psutil
import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from app.cli.output import print_json, print_message
from tests.app_server import serve_app

PAGES = ("", "live", "memory", "replay", "compare", "notebook", "method")
"""Home, and the pages that draw most."""
TABS = 5


def main() -> None:
    """Load pages, and print the memory of the app after every 50 loads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", required=True, help="Database with runs")
    parser.add_argument("--loads", type=int, default=300, help="Number of page loads")
    parser.add_argument("--every", type=int, default=50, help="Loads between two samples")
    parser.add_argument("--json", action="store_true", help="Print JSON")
    arguments = parser.parse_args()
    samples: list[tuple[int, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_app(arguments.db, Path(folder) / "app.txt") as address,
    ):
        (server,) = (child for child in psutil.Process().children() if "streamlit" in child.cmdline())
        for first in range(0, arguments.loads + 1, arguments.every):
            if first:
                asyncio.run(_load_pages(address, first - arguments.every, arguments.every))
            samples.append((first, server.memory_info().rss / 1e6))
            if not arguments.json:
                print_message(f"{samples[-1][0]:>5} page loads: {samples[-1][1]:.0f} MB")
    if arguments.json:
        print_json([{"page_loads": loads, "rss_mb": round(memory, 1)} for loads, memory in samples])


async def _load_pages(address: str, first: int, count: int) -> None:
    pages = iter(list(islice(cycle(PAGES), first, first + count)))

    async def open_tabs() -> None:
        for page in pages:
            await _load_page(address, page)

    await asyncio.gather(*(open_tabs() for _ in range(TABS)))


async def _load_page(address: str, page: str) -> None:
    """Open a session, draw its page, update each part that has a timer, and close the session."""
    url = address.replace("http", "ws", 1) + "/_stcore/stream"
    async with websockets.connect(url, origin=address, subprotocols=["streamlit"], max_size=None) as session:
        for fragment_id in await _run_script(session, page, ""):
            await _run_script(session, page, fragment_id)


async def _run_script(session: websockets.ClientConnection, page: str, fragment_id: str) -> list[str]:
    """Run the script of a page, or a part of it, and return the ids of the parts with a timer."""
    request = BackMsg()
    request.rerun_script.page_name = page
    request.rerun_script.fragment_id = fragment_id
    request.rerun_script.is_auto_rerun = bool(fragment_id)
    await session.send(request.SerializeToString())
    timed_parts: list[str] = []
    async for data in session:
        message = ForwardMsg()
        message.ParseFromString(data)
        kind = message.WhichOneof("type")
        element = message.delta.new_element
        assert element.WhichOneof("type") != "exception", element.exception.message
        assert element.alert.format != element.alert.ERROR, element.alert.body
        if kind == "auto_rerun":
            timed_parts.append(message.auto_rerun.fragment_id)
        elif kind == "script_finished":
            break
    return timed_parts


if __name__ == "__main__":
    main()
