"""Health: which runs need attention, and what is missing on this machine?"""

from app.ui import health, messages
from app.ui.widgets import page_tabs

page_tabs.show()
with messages.guarded():
    health.show()
with messages.guarded():
    health.show_machine()
