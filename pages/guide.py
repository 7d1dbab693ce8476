"""Guide: how do I use the program, and what does a term mean?"""

from app.ui import guide, messages
from app.ui.widgets import page_tabs

page_tabs.show()
with messages.guarded():
    guide.show()
