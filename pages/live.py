"""Live: how does the run progress, and what does its gate do?"""

from app.ui import messages
from app.ui.live import panels
from app.ui.widgets import pin, run_picker

run = run_picker.open_page("Live", gate=False)  # the status line of `panels` shows the gate and refreshes
with messages.guarded():
    panels.show(run)
    pin.show_more("live", [run])
