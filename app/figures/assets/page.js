// Behavior of all pages.
if (!window.emtcPage) {
  window.emtcPage = true
  const NARROW_PX = 768 // below this width, the sidebar covers the page

  // One action of the user adds at most one entry to the browser's history. Streamlit adds an entry at each change of
  // the URL by the server. A page that opens writes its run, its episode and other parameters one after the other, and
  // the back button would need a press for each of them.
  const push = window.history.pushState.bind(window.history)
  let hasActed = false
  for (const type of ["pointerdown", "keydown", "click"]) {
    window.addEventListener(type, () => (hasActed = true), true)
  }
  window.addEventListener("popstate", () => (hasActed = false), true)
  window.history.pushState = (...entry) => {
    if (hasActed) push(...entry)
    else window.history.replaceState(...entry)
    hasActed = false
  }

  // A popover that was opened with the keyboard gets the focus. Streamlit draws it at the end of the page, where the Tab
  // key would reach it only after everything else. Its content may arrive from the server after some time.
  const WAIT_MS = 50
  const MAX_WAITS = 100
  const FIELDS = ":is(input, textarea, select, button, summary, a[href]):not([disabled], [aria-label^=Help])"
  function focusPopover(button, nWaits) {
    if (document.activeElement !== button || button.getAttribute("aria-expanded") !== "true") return
    const fields = [...document.querySelectorAll(`[data-testid=stPopoverBody] ${FIELDS}`)]
    const field = fields.find((each) => each.getClientRects().length)
    if (field) field.focus()
    else if (nWaits) setTimeout(() => focusPopover(button, nWaits - 1), WAIT_MS)
  }
  document.addEventListener("keyup", ({ key, target }) => {
    if (["Enter", " "].includes(key) && target.closest("[data-testid=stPopover]")) {
      setTimeout(() => focusPopover(target, MAX_WAITS), WAIT_MS)
    }
  })

  // A link in the sidebar closes the sidebar if it covers the page.
  document.addEventListener("click", ({ target }) => {
    if (window.innerWidth >= NARROW_PX || !target.closest(".st-key-sidebar_links a")) return
    document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click()
  })
}
