"""The replay itself as a file: a page that plays without a network, an animation, one frame as vectors."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from app.playback import drawing, offline
from app.playback.replay import Replay
from app.results.provenance import describe_runs
from app.theme import Mode


def show(replays: Sequence[Replay], *, start: int) -> None:
    """Offer the files; each is made only when it is asked for."""
    sides = [replay.side for replay in replays]
    last = max(side.frames for side in sides) - 1
    stem = "-".join(replay.stem for replay in replays)
    sources = describe_runs({replay.run.id: replay.run.config for replay in replays})
    with st.popover("Save replay", icon=":material/movie:", key="save-replay"):
        st.caption("Made on this machine. The page plays offline, in any browser, from one file.")
        mode: Mode = "dark" if st.toggle("Dark background", key="save-replay-dark") else "light"
        st.download_button(
            "Replay as HTML",
            data=partial(offline.make_page, sides, start=start, sources=sources),
            file_name=f"replay-{stem}.html",
            mime="text/html",
            key="save-replay-html",
            on_click="ignore",
            width="stretch",
        )
        st.download_button(
            "GIF",
            data=partial(drawing.to_gif, sides, mode=mode),
            file_name=f"replay-{stem}.gif",
            mime="image/gif",
            key="save-replay-gif",
            on_click="ignore",
            width="stretch",
            help=f"At most {drawing.MOST_FRAMES} frames; it takes some seconds to draw.",
        )
        t = st.number_input("Step of the frame", 0, max(0, last), min(max(0, start), last), key=f"save-replay-t-{stem}")
        st.download_button(
            "SVG of this frame",
            data=partial(drawing.to_svg, sides, frame=float(t), mode=mode, sources=sources),
            file_name=f"replay-{stem}-t{t}.svg",
            mime="image/svg+xml",
            key="save-replay-svg",
            on_click="ignore",
            width="stretch",
        )
