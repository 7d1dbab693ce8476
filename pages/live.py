"""Live: how does the run progress, and what does its gate (the weight β of the episodic incentive) do?"""

from app.ui import messages
from app.ui.live import panels
from app.ui.widgets import pin, run_header

# `panels` draws the numbers, together with the messages of the run.
run = run_header.open_page("Live", has_numbers=False)
with messages.guarded():
    panels.show(run)
    pin.show_more_figures("live", [run])
