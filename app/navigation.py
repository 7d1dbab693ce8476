"""The pages of the app, and the entries of the sidebar in their order.

An entry opens one page, or the last shown page of a group. The pages of a group have a common row of tabs.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class NavigationPage:
    """One page."""

    name: str
    """Name of its script in `pages`."""
    title: str
    """Title of its entry in the sidebar, or of its tab."""
    icon: str
    path: str = ""
    """Path in the URL; empty if it equals the name. The first page has the path of the app itself."""


@dataclass(frozen=True)
class PageGroup:
    """Pages with a common entry in the sidebar."""

    title: str
    icon: str
    default: str
    """Name of the page that the entry opens if the session has not shown a page of the group."""
    pages: tuple[NavigationPage, ...]
    """The pages in the order of their tabs."""


NAVIGATION: Final[tuple[NavigationPage | PageGroup, ...]] = (
    NavigationPage("home", "Home", ":material/home:"),
    NavigationPage("launch", "Launch", ":material/rocket_launch:"),
    PageGroup(
        "Run",
        ":material/monitoring:",
        default="live",
        pages=(
            NavigationPage("run", "Overview", ":material/description:"),
            NavigationPage("live", "Live", ":material/monitoring:"),
            NavigationPage("memory", "Memory", ":material/bubble_chart:"),
            NavigationPage("replay", "Replay", ":material/smart_display:"),
        ),
    ),
    NavigationPage("findings", "Findings", ":material/fact_check:"),
    NavigationPage("compare", "Compare", ":material/stacked_line_chart:"),
    NavigationPage("sweeps", "Sweeps", ":material/grid_on:"),
    NavigationPage("notebook", "Notebook", ":material/menu_book:"),
    NavigationPage("sql", "SQL", ":material/database:"),
    PageGroup(
        "Maintenance",
        ":material/build:",
        default="health",
        pages=(
            NavigationPage("health", "Health", ":material/notifications:"),
            NavigationPage("disk", "Storage", ":material/hard_drive:", path="storage"),
        ),
    ),
    PageGroup(
        "Learn",
        ":material/school:",
        default="guide",
        pages=(
            NavigationPage("guide", "Guide", ":material/help:"),
            NavigationPage("method", "Method", ":material/function:"),
        ),
    ),
)
PAGES: Final = {
    page.name: page for entry in NAVIGATION for page in (entry.pages if isinstance(entry, PageGroup) else (entry,))
}
"""Name → page."""
HOME: Final = next(iter(PAGES))
"""Name of the first page."""


def get_path(name: str) -> str:
    """Return the path of a page in the URL; it is empty for the first page."""
    if name == HOME:
        return ""
    return PAGES[name].path or name


def find_name(path: str) -> str | None:
    """Find the name of the page with this path; None if no page has it."""
    return next((name for name in PAGES if get_path(name) == path), None)


def find_group(name: str) -> PageGroup | None:
    """Find the group of a page; None if it is in no group."""
    groups = (entry for entry in NAVIGATION if isinstance(entry, PageGroup))
    return next((group for group in groups if PAGES[name] in group.pages), None)
