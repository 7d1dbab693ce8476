"""Overview: with which settings, code and machine was this run trained, and how can it be repeated?"""

from app.ui import messages
from app.ui.run import overview
from app.ui.widgets import run_header

run = run_header.open_page("Overview")
with messages.guarded():
    overview.show(run)
