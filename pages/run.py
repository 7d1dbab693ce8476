"""Run: what is this run, exactly, and how is it repeated?"""

from app.ui import messages
from app.ui.run import panel
from app.ui.widgets import run_picker

run = run_picker.open_page("Run")
with messages.guarded():
    panel.show(run)
