"""The links in the sidebar and the tabs of the groups of pages."""

from app.navigation import NAVIGATION, PageGroup, find_group, get_path
from tests.pages.test_pages import open_page


def read_links(block) -> dict[str, tuple[str, str]]:
    """Return the label of each link in a part of the page → its path and its query."""
    links = (link.proto for link in block.get("page_link"))
    return {link.label: (link.page, link.query_string) for link in links}


def test_the_links_of_the_sidebar_and_the_tabs_of_a_group_keep_the_run(seeded):
    _, run_id = seeded
    app = open_page("health", run=run_id)
    links = read_links(app.sidebar)
    assert list(links) == [entry.title for entry in NAVIGATION]
    assert {query for _, query in links.values()} == {f"run={run_id}"}
    group = find_group("health")
    assert group is not None
    tabs = read_links(app.main)
    for tab in group.pages:
        if tab.name != "health":
            assert tabs[tab.title] == (get_path(tab.name), f"run={run_id}")


def test_the_link_of_a_group_opens_its_last_shown_page(seeded):
    app = open_page("home")
    groups = [entry for entry in NAVIGATION if isinstance(entry, PageGroup)]
    links = read_links(app.sidebar)
    assert {group.title: links[group.title][0] for group in groups} == {
        group.title: get_path(group.default) for group in groups
    }
    for page in ("memory", "disk", "method"):
        app.switch_page(f"../pages/{page}.py").run()
        assert not app.exception
    app.switch_page("../pages/sql.py").run()
    links = read_links(app.sidebar)
    assert [links[group.title][0] for group in groups] == ["memory", "storage", "method"]
