// Needs common.js. A legend for several charts, with color and dash. A click hides or shows a line in all charts.
export default function legend({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".legend")
  root.replaceChildren(...data.items.map((item) => {
    const button = document.createElement("button")
    button.type = "button"
    button.setAttribute("aria-pressed", String(!item.hidden))
    button.title = item.hidden ? "Show this line" : "Hide this line"
    const label = document.createElement("span")
    label.textContent = item.label
    button.append(swatch(item), label)
    button.onclick = () => setTriggerValue("toggle", item.name)
    const point = (name) => () => document.dispatchEvent(new CustomEvent(STRONG, { detail: name }))
    button.onpointerenter = button.onfocus = point(item.hidden ? null : item.label)
    button.onpointerleave = button.onblur = point(null)
    return button
  }))
}

const STRONG = "emtc-lab-strong"

function swatch({ color, dash, marker }) {
  const canvas = document.createElement("canvas")
  const ratio = window.devicePixelRatio || 1
  canvas.width = 34 * ratio
  canvas.height = 12 * ratio
  canvas.style.width = "34px"
  canvas.style.height = "12px"
  canvas.setAttribute("aria-hidden", "true")
  const ctx = canvas.getContext("2d")
  ctx.scale(ratio, ratio)
  ctx.strokeStyle = ctx.fillStyle = color
  ctx.lineWidth = 3
  ctx.setLineDash(dash || [])
  ctx.beginPath()
  ctx.moveTo(0, 6)
  ctx.lineTo(34, 6)
  ctx.stroke()
  if (marker) drawMarker(ctx, marker, 17, 6, 4.5)
  return canvas
}
