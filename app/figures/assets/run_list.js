// Needs line_marker.js. A list of groups of runs, each with the sample of its line and a button that hides or shows its
// lines. A group can be unfolded to its runs. The pointer or the focus on a row highlights its line in all charts.
//
// A press on an eye changes the list and hides the lines of the charts at once. The server then sends the new data.
// Until the data agree, the pressed state is drawn and sent again with the next press, because Streamlit keeps only the
// last of several events that arrive before the page is drawn.

const STRONG = "emtc-lab-strong" // event: highlight a line
const HIDDEN = "emtc-lab-hidden" // event: hide or show a line that a chart already has

export default function runList({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".run-list")
  const self = root.state || (root.state = { isOpen: new Map(), pressed: new Map() })
  self.send = setTriggerValue
  const text = JSON.stringify(data)
  if (text === self.text) return
  self.text = text
  self.data = data
  for (const { key, shown, runs } of data.groups) {
    forgetIfEqual(self, key, shown)
    for (const run of runs) forgetIfEqual(self, run.id, run.shown)
  }
  root.setAttribute("aria-label", data.label)
  root.style.maxHeight = data.height
  draw(self, root)
}

function forgetIfEqual({ pressed }, name, shown) {
  if (String(pressed.get(name)) === shown) pressed.delete(name)
}

function draw(self, root) {
  const focused = root.getRootNode().activeElement?.dataset?.focus
  const top = root.scrollTop
  const list = document.createElement("ul")
  list.append(...self.data.groups.map((group) => drawGroup(self, root, group)))
  root.replaceChildren(list)
  root.scrollTop = top
  if (focused) [...root.querySelectorAll("[data-focus]")].find((button) => button.dataset.focus === focused)?.focus()
}

function drawGroup(self, root, group) {
  const { data } = self
  const isOpen = self.isOpen.get(group.key) ?? group.open
  const shown = stateOfGroup(self, group)
  const main = makeButton("main", `fold ${group.key}`, () => {
    self.isOpen.set(group.key, !isOpen)
    draw(self, root)
  })
  main.setAttribute("aria-expanded", String(isOpen))
  if (group.style) main.append(drawSwatch(group.style))
  main.append(makeText("name", group.title))
  const count = group.runs.length + group.more
  if (count > 1) main.append(makeText("number count", `${count} runs`))
  if (group.rate) main.append(makeText("number", group.rate))
  main.append(drawPicture("chevron", "0 0 10 10", "M3 1l4 4-4 4"))
  main.title = group.tip
  const item = document.createElement("li")
  item.append(makeRow(self, root, "group", main, { ...group, name: group.key, drawn: group.line, shown }))
  if (!isOpen) return item
  const runs = document.createElement("ul")
  for (const run of group.runs) {
    runs.append(drawRun(self, root, { ...run, drawn: run.line || group.line, shown: stateOfRun(self, group, run) }))
  }
  if (group.more) runs.append(makeText("more", `and ${group.more} more`, "li"))
  item.append(runs)
  return item
}

function drawRun(self, root, run) {
  const { data } = self
  const main = data.picks ? makeButton("main", `pick ${run.id}`, () => self.send("pick", run.id)) : makeText("main", "", "div")
  if (run.style) main.append(drawSwatch(run.style))
  const icon = makeText("icon", "")
  icon.dataset.icon = run.icon
  icon.style.color = `var(--st-${run.color}-text-color, currentColor)`
  icon.setAttribute("role", "img")
  icon.setAttribute("aria-label", run.status)
  main.append(icon, makeText("name", run.name))
  if (run.rate) main.append(makeText("number", run.rate))
  main.title = run.tip
  const item = document.createElement("li")
  const row = makeRow(self, root, "run", main, { ...run, name: run.id, title: run.name })
  if (run.id === data.current) {
    row.classList.add("current")
    main.setAttribute("aria-current", "true")
  }
  item.append(row)
  return item
}

// `drawn` is the line that the row highlights. `line` is the line that its eye hides: that of the row alone.
function makeRow(self, root, kind, main, { name, title, line, drawn, shown, runs = [] }) {
  const { data } = self
  const row = document.createElement("div")
  row.className = `row ${kind}`
  row.classList.toggle("off", shown === "false")
  if (data.hides) row.append(makeEye(self, root, { name, title, line, shown, runs }))
  row.append(main)
  if (data.isolates) {
    const only = makeButton("only", `only ${name}`, () => self.send("only", name))
    only.textContent = "only"
    only.title = `Only ${title}`
    row.append(only)
  }
  if (drawn) {
    const highlight = (value) => () => document.dispatchEvent(new CustomEvent(STRONG, { detail: value }))
    for (const type of ["pointerenter", "focusin"]) row.addEventListener(type, highlight(shown === "false" ? null : drawn))
    for (const type of ["pointerleave", "focusout"]) row.addEventListener(type, highlight(null))
  }
  return row
}

function makeEye(self, root, { name, title, line, shown, runs }) {
  const isNowShown = shown === "false" // after the press: a group of which some runs are hidden is hidden
  const eye = makeButton("eye", `eye ${name}`, () => {
    for (const former of [name, ...runs.map((run) => run.id)]) self.pressed.delete(former)
    self.pressed.set(name, isNowShown)
    if (line) document.dispatchEvent(new CustomEvent(HIDDEN, { detail: { name: line, isHidden: !isNowShown } }))
    draw(self, root)
    self.send("toggle", Object.fromEntries(self.pressed))
  })
  eye.setAttribute("aria-pressed", shown)
  eye.setAttribute("aria-label", `Show ${title}`)
  eye.title = isNowShown ? "Show" : "Hide"
  const picture = drawPicture("", "0 0 16 16", "M1 8s2.5-4.5 7-4.5S15 8 15 8s-2.5 4.5-7 4.5S1 8 1 8z", "M8 6a2 2 0 1 0 0 4 2 2 0 0 0 0-4z")
  picture.append(drawPath("M2 14L14 2", "slash"))
  eye.append(picture)
  return eye
}

// "true" or "false". A press on the eye of the group is a press on the eyes of its runs.
function stateOfRun({ pressed }, group, run) {
  const name = [run.id, group.key].find((each) => pressed.has(each))
  return name === undefined ? run.shown : String(pressed.get(name))
}

// "true", "false", or "mixed" if some of its runs are hidden. Runs that are not listed count only before a press.
function stateOfGroup(self, group) {
  if (group.runs.some((run) => self.pressed.has(run.id))) {
    const states = new Set(group.runs.map((run) => stateOfRun(self, group, run)))
    return states.size > 1 ? "mixed" : [...states][0]
  }
  return self.pressed.has(group.key) ? String(self.pressed.get(group.key)) : group.shown
}

function makeButton(className, focus, onClick) {
  const button = document.createElement("button")
  button.type = "button"
  button.className = className
  button.dataset.focus = focus
  button.onclick = onClick
  return button
}

function makeText(className, text, tag = "span") {
  const element = document.createElement(tag)
  element.className = className
  element.textContent = text
  return element
}

function drawPicture(className, viewBox, ...paths) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  svg.setAttribute("viewBox", viewBox)
  svg.setAttribute("class", className)
  svg.setAttribute("aria-hidden", "true")
  svg.append(...paths.map((path) => drawPath(path)))
  return svg
}

function drawPath(d, className = "") {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path")
  path.setAttribute("d", d)
  path.setAttribute("class", className)
  return path
}

function drawSwatch({ color, dash, marker }) {
  const canvas = document.createElement("canvas")
  const ratio = window.devicePixelRatio || 1
  canvas.width = 26 * ratio
  canvas.height = 12 * ratio
  canvas.style.width = "26px"
  canvas.style.height = "12px"
  canvas.setAttribute("aria-hidden", "true")
  const ctx = canvas.getContext("2d")
  ctx.scale(ratio, ratio)
  ctx.strokeStyle = ctx.fillStyle = color
  ctx.lineWidth = 3
  ctx.setLineDash(dash || [])
  ctx.beginPath()
  ctx.moveTo(0, 6)
  ctx.lineTo(26, 6)
  ctx.stroke()
  if (marker) drawMarker(ctx, marker, 13, 6, 4.5)
  return canvas
}
