// The names of lines that several charts share, with colour and dash; a press hides or shows one everywhere.
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
    return button
  }))
}

function swatch({ color, dash }) {
  const space = "http://www.w3.org/2000/svg"
  const svg = document.createElementNS(space, "svg")
  svg.setAttribute("width", "34")
  svg.setAttribute("height", "10")
  svg.setAttribute("aria-hidden", "true")
  const line = document.createElementNS(space, "line")
  for (const [name, value] of Object.entries({ x1: 0, x2: 34, y1: 5, y2: 5, stroke: color, "stroke-width": 3 })) {
    line.setAttribute(name, value)
  }
  if (dash) line.setAttribute("stroke-dasharray", dash.join(" "))
  svg.append(line)
  return svg
}
