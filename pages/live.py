"""Live: how does this run go, and what does its gate do?"""

from app import messages
from app.components import run_picker
from app.components.live import panels

run = run_picker.open_page("Live", gate=False)  # its status line has the badge and ticks
with messages.guarded():
    panels.show(run)
