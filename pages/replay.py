"""Replay: what did the team do, and when did the gate trust the memory?"""

from app import messages
from app.components import run_picker
from app.components.replay import panel

run = run_picker.open_page("Replay")
with messages.guarded():
    panel.show(run)
