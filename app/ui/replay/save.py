"""The replay itself as a file: a page that plays without a network, an animation, one frame as vectors."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.figures.theme import Mode
from app.replay.drawing import MOST_FRAMES
from app.replay.files import MIME, Format, make_file
from app.replay.replay import Replay


def show(replays: Sequence[Replay], *, start: int) -> None:
    """Offer the files; each is made only when it is asked for, while its button says that it is at work."""
    last = max(0, max(replay.side.frames for replay in replays) - 1)
    stem = "-".join(replay.stem for replay in replays)
    with st.popover("Save replay", icon=":material/movie:", key="save-replay"):
        _offer(replays, "Replay as HTML", "html", stem, help="One file that plays in any browser, without a network.")
        mode: Mode = "dark" if st.toggle("Dark background", key="save-replay-dark") else "light"
        slow = f"At most {MOST_FRAMES} frames; drawing them takes some seconds."
        _offer(replays, "GIF", "gif", stem, mode=mode, help=slow)
        at = min(max(0, start), last)
        t = st.number_input("Step of the frame", 0, last, at, key=f"save-replay-t-{stem}-{at}")
        _offer(replays, "SVG of this frame", "svg", stem, t=int(t), mode=mode)


def _offer(
    replays: Sequence[Replay],
    label: str,
    format: Format,
    stem: str,
    *,
    t: int = 0,
    mode: Mode = "light",
    help: str | None = None,
) -> None:
    st.download_button(
        label,
        data=partial(make_file, replays, format, t=t, mode=mode),
        file_name=f"replay-{stem}{f'-t{t}' if format == 'svg' else ''}.{format}",
        mime=MIME[format],
        key=f"save-replay-{format}",
        on_click="ignore",
        width="stretch",
        help=help,
    )
