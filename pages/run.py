"""Run: with which settings, code and machine was this run trained, and how can it be repeated?"""

from app.ui import messages
from app.ui.run import panel
from app.ui.widgets import run_picker

run = run_picker.open_page("Run")
with messages.guarded():
    panel.show(run)
