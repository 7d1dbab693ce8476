"""Replay: what did the team do, and at which steps was the gate (the weight β of the episodic incentive) open?"""

from app.ui import messages
from app.ui.replay import panel
from app.ui.widgets import run_header

run = run_header.open_page("Replay")
with messages.guarded():
    panel.show(run)
