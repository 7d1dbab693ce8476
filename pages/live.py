"""Live: how does this run go, and what does its gate do?"""

from app.ui import messages
from app.ui.live import panels
from app.ui.widgets import pin, run_picker

run = run_picker.open_page("Live", gate=False)  # its status line has the badge and ticks
with messages.guarded():
    panels.show(run)
    pin.show_more("live", [run])
