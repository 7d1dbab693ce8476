"""The pages of the app by section: script, title and icon. The order is that of the sidebar."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class NavigationPage:
    """One page."""

    name: str
    """Name of its script in `pages`."""
    title: str
    icon: str
    path: str = ""
    """Path in the URL; empty if it equals the name. The first page has the path of the app itself."""


NAVIGATION: Final[dict[str, tuple[NavigationPage, ...]]] = {
    "": (NavigationPage("home", "Home", ":material/home:"),),
    "Runs": (
        NavigationPage("launch", "Launch", ":material/rocket_launch:"),
        NavigationPage("run", "Overview", ":material/description:"),
        NavigationPage("live", "Live", ":material/monitoring:"),
        NavigationPage("memory", "Memory", ":material/bubble_chart:"),
        NavigationPage("replay", "Replay", ":material/smart_display:"),
    ),
    "Study": (
        NavigationPage("findings", "Findings", ":material/fact_check:"),
        NavigationPage("compare", "Compare", ":material/stacked_line_chart:"),
        NavigationPage("sweeps", "Sweeps", ":material/grid_on:"),
        NavigationPage("notebook", "Notebook", ":material/menu_book:"),
        NavigationPage("sql", "SQL", ":material/database:"),
    ),
    "Maintenance": (
        NavigationPage("disk", "Storage", ":material/hard_drive:", path="storage"),
        NavigationPage("health", "Health", ":material/notifications:"),
    ),
    "Learn": (
        NavigationPage("method", "Method", ":material/function:"),
        NavigationPage("guide", "Guide", ":material/help:"),
    ),
}
PAGES: Final = {page.name: page for pages in NAVIGATION.values() for page in pages}
"""Name → page."""
HOME: Final = next(iter(PAGES))
"""Name of the first page."""


def get_path(name: str) -> str:
    """Return the path of a page in the URL; it is empty for the first page."""
    if name == HOME:
        return ""
    return PAGES[name].path or name


def find_name(path: str) -> str:
    """Return the name of the page with this path; the name of the first page if no page has it."""
    return next((name for name in PAGES if get_path(name) == path), HOME)
