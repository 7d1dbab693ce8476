"""The links in the sidebar and the tabs of the groups of pages."""

from app.navigation import NAVIGATION, PAGES, PageGroup, get_path
from tests.pages.test_pages import open_page

MOST_LINKS = 11


def read_links(block) -> dict[str, tuple[str, str]]:
    """Return the label of each link in a part of the page → its path and its query."""
    links = (link.proto for link in block.get("page_link"))
    return {link.label: (link.page, link.query_string) for link in links}


def test_the_sidebar_has_few_links_and_they_keep_the_run(seeded):
    _, run_id = seeded
    links = read_links(open_page("sql", run=run_id).sidebar)
    assert list(links) == [entry.title for entry in NAVIGATION]
    assert len(links) <= MOST_LINKS
    assert {query for _, query in links.values()} == {f"run={run_id}"}


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


def test_the_pages_of_a_group_are_linked_by_tabs_that_keep_the_run(seeded):
    _, run_id = seeded
    for group in NAVIGATION:
        if not isinstance(group, PageGroup):
            continue
        for page in group.pages:
            app = open_page(page.name, run=run_id)
            assert app.title[0].value == PAGES[page.name].title
            links = read_links(app.main)
            for tab in group.pages:
                if tab is not page:
                    assert links[tab.title] == (get_path(tab.name), f"run={run_id}")
