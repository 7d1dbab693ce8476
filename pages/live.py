"""Live: how does the run progress, and what does its gate do?"""

from app.ui import messages
from app.ui.live import panels
from app.ui.widgets import pin, run_header

run = run_header.open_page("Live", has_numbers=False)  # `panels` draws the numbers together with its messages
with messages.guarded():
    panels.show(run)
    pin.show_more("live", [run])
