// Highlights the part of the page that a step of the tour describes, and scrolls to it. The part may be drawn later.
const TARGET = "data-tour-target"
const WAIT_MS = 250
const MAX_WAITS = 80

export default function tour({ data }) {
  let waits = 0
  let timer = 0
  const clear = () => document.querySelectorAll(`[${TARGET}]`).forEach((element) => element.removeAttribute(TARGET))
  const highlight = () => {
    const element = document.querySelector(data.target)
    if (element) {
      element.setAttribute(TARGET, String(data.step))
      element.scrollIntoView({ block: "nearest", behavior: "smooth" })
    } else if ((waits += 1) < MAX_WAITS) timer = setTimeout(highlight, WAIT_MS)
  }
  clear()
  highlight()
  return () => {
    clearTimeout(timer)
    clear()
  }
}
