"""Every text can be read (WCAG AA), in both themes, and no title stands under the app's header."""

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.browser, pytest.mark.timeout(900)]
PAGES = ("", "launch?steps=-5", "run", "live", "sweeps")
FURTHER_PAGES = ("replay", "storage", "health", "sql")
SETTLED = """() => document.querySelector('.stApp').dataset.testScriptState === 'notRunning'
    && !document.querySelector('[data-testid=stSkeleton], [data-stale=true], [data-testid=stStatusWidget]')"""
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
        const field = node.closest("[data-testid=stWidgetLabel]")?.closest("[data-testid=stElementContainer]")
        if (field?.querySelector(":disabled")) continue
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
DRAWN_IN = "theme => getComputedStyle(document.querySelector('.stApp')).colorScheme === theme"
COVERED = """() => {
    const head = document.querySelector("[data-testid=stHeader]").getBoundingClientRect().bottom
    const main = document.querySelector("[data-testid=stMainBlockContainer]")
    const isCovered = box => box.height && box.top < head
    return [...main.querySelectorAll("h1, a, button")].filter(n => isCovered(n.getBoundingClientRect()))
        .map(n => n.innerText).filter(Boolean)
}"""


def open_page(page, seeded, name: str) -> None:
    url, run_id, _ = seeded
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{url}/{name}{'&' if '?' in name else '?'}run={run_id}")
    page.add_style_tag(content="* { transition: none !important; animation: none !important }")
    settle(page)


def settle(page) -> None:
    """Wait until the page is whole and stands where it will; what would glide there is there at once."""
    page.get_by_role("heading", level=1).first.wait_for()
    page.wait_for_function(SETTLED)
    page.wait_for_timeout(150)


@pytest.mark.parametrize("name", [*PAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER_PAGES)])
def test_every_text_can_be_read_and_no_title_stands_under_the_header(page, seeded, name):
    open_page(page, seeded, name)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(DRAWN_IN, arg=theme)
        settle(page)
        assert page.evaluate(PALE) == [], theme
    for width in (1440, 1024, 390):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        assert page.evaluate(COVERED) == [], width


@pytest.mark.parametrize("width", [1440, 1024])
def test_the_tables_of_presets_are_not_wider_than_the_page(page, seeded, width):
    open_page(page, seeded, "method?part=Presets")
    page.set_viewport_size({"width": width, "height": 900})
    tables = page.locator(".st-key-method_presets table")
    tables.first.wait_for()
    settle(page)
    too_wide = "nodes => nodes.filter(n => n.scrollWidth > n.parentElement.clientWidth).map(n => n.rows[0].innerText)"
    assert tables.evaluate_all(too_wide) == []
