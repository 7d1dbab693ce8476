"""Every text can be read (WCAG AA), in both themes, and no title stands under the app's header."""

import pytest

from storage.engine import open_database
from tests.browser.server import running_app
from tests.pages.seed import seed_failed_run, seed_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
PAGES = ("", "launch?steps=-5", "run", "live", "replay", "sweeps", "storage", "health", "sql")
SETTLED = (
    """() => !document.querySelector('[data-testid=stSkeleton], [data-stale=true], [data-testid=stStatusWidget]')"""
)
PALE = r"""() => {
    const canvas = document.createElement("canvas"), pen = canvas.getContext("2d", { willReadFrequently: true })
    canvas.width = canvas.height = 1
    const read = color => {
        pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1)
        const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data
        return [r, g, b, a / 255]
    }
    const over = (top, low) => {
        const a = top[3] + low[3] * (1 - top[3])
        return a ? [0, 1, 2].map(i => (top[i] * top[3] + low[i] * low[3] * (1 - top[3])) / a).concat(a) : [0, 0, 0, 0]
    }
    const light = c => {
        const part = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4
        return 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]) + 0.05
    }
    const ground = node => {
        let c = [0, 0, 0, 0]
        for (let n = node; n && c[3] < 0.999; n = n.parentElement) {
            c = over(c, read(getComputedStyle(n).backgroundColor))
        }
        return over(c, [255, 255, 255, 1])
    }
    const ratio = (node, style, opacity) => {
        const low = ground(node), ink = read(style.color)
        ink[3] *= opacity
        const [a, b] = [light(over(ink, low)), light(low)]
        return Math.max(a, b) / Math.min(a, b)
    }
    const veil = node => node ? getComputedStyle(node).opacity * veil(node.parentElement) : 1
    const found = []
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (words.nextNode()) {
        const text = words.currentNode.textContent.trim(), node = words.currentNode.parentElement
        if (!text || node.closest("style, script, noscript, :disabled, [aria-disabled=true], .katex-mathml")) continue
        if (node.closest("label")?.querySelector(":disabled")) continue
        const style = getComputedStyle(node), box = node.getBoundingClientRect(), opacity = veil(node)
        if (!box.width || !box.height || opacity < 0.05 || style.fontFamily.includes("Material")) continue
        const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700)
        const is = ratio(node, style, opacity)
        if (is < (large ? 3 : 4.5)) found.push(`${is.toFixed(2)} ${text.slice(0, 40)} (${style.color}, ${size}px)`)
    }
    for (const field of document.querySelectorAll("input[placeholder]:enabled, textarea[placeholder]:enabled")) {
        if (field.value) continue
        const style = getComputedStyle(field, "::placeholder"), is = ratio(field, style, style.opacity)
        if (is < 4.5) found.push(`${is.toFixed(2)} ${field.placeholder} (placeholder)`)
    }
    return found
}"""
COVERED = """() => {
    const head = document.querySelector("[data-testid=stHeader]").getBoundingClientRect().bottom
    const main = document.querySelector("[data-testid=stMainBlockContainer]")
    const isCovered = box => box.height && box.top < head
    return [...main.querySelectorAll("h1, a, button")].filter(n => isCovered(n.getBoundingClientRect()))
        .map(n => n.innerText).filter(Boolean)
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    path = tmp_path_factory.mktemp("reading") / "emtc.db"
    db = open_database(f"sqlite:///{path}")
    run_id = seed_run(db)
    seed_failed_run(db)
    with running_app(path) as url:
        yield url, run_id


def open_at(browser, url: str, page: str, run_id: str, *, theme: str, width: int):
    opened = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    opened.set_default_timeout(120_000)
    opened.goto(f"{url}/{page}{'&' if '?' in page else '?'}run={run_id}")
    opened.get_by_role("heading", level=1).first.wait_for()
    opened.wait_for_function(SETTLED)
    opened.wait_for_timeout(500)
    return opened


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_every_text_can_be_read(browser, served, page, theme):
    opened = open_at(browser, served[0], page, served[1], theme=theme, width=1440)
    pale = opened.evaluate(PALE)
    opened.close()
    assert pale == []


@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("page", ["launch", "run", "live", "replay"])
def test_no_title_stands_under_the_header(browser, served, page, width):
    opened = open_at(browser, served[0], page, served[1], theme="light", width=width)
    covered = opened.evaluate(COVERED)
    opened.close()
    assert covered == []
