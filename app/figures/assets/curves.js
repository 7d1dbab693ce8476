// Stacked line panels over one x axis. The DOM node and the zoom window stay when new data arrive.
// A click on a name hides its line. Hovering over a name highlights its line. In a plot, the line that is nearest to the
// pointer is highlighted; the arrow keys up and down highlight one line after the other.
// Dragging selects a window. The wheel with Ctrl or Shift zooms (without a key it scrolls the page). Shift and dragging
// pans. A double click or Escape resets the zoom.
// With `opens`, a press on the plot or on the button in the corner is sent to the page, which enlarges the chart.
// Charts with the same `link` have the same window and cursor. Their lines are named only in the legend, so
// that their plots have one width. The button in the corner shows the chart on the whole screen.
// A slider of the page (smoothing.js) smooths their lines. The measured values stay below as faint lines.
//
// Why not uPlot (1.6.32: 51 kB minified): it needs one x array for all lines of a chart, but each line here has its own
// steps, and it has no names at the ends of lines, marker shapes, hidden names or drawn legends. These would be plugins,
// which are about half of the 760 lines (31 kB) of this file and common.js.

const LEFT = 62
const RIGHT = 14
const TOP = 34
const BOTTOM = 44
const BOTTOM_WITHOUT_TITLE = 26 // of a chart without the title of the x axis
const SUBTITLE = 18
const MIN_PANEL_HEIGHT = 160
const CORNER = 26 // width of the button at the top right
const WHOLE_NUMBERS_FROM = 20 // from this width, the limits of a window are whole numbers, as in page_state.py
const LINKED = "emtc-lab-linked" // event: the window or the cursor of a linked chart has changed
const SMOOTHING = "emtc-lab-smoothing" // event: the slider of the page has changed (smoothing.js)
const STRONG = "emtc-lab-strong" // event: the list of runs highlights a line (run_list.js)
const HIDDEN = "emtc-lab-hidden" // event: the list of runs hides or shows a line
const TIP_GAP = 16 // pixels between the pointer and the tooltip

export default function curves({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".curves")
  const self = root.state || (root.state = create(root))
  self.send = setTriggerValue
  self.observer.observe(root)
  document.addEventListener(STRONG, self.onHighlight)
  document.addEventListener(HIDDEN, self.onHidden)
  document.addEventListener(LINKED, self.onLinkedChange)
  document.addEventListener(SMOOTHING, self.onSmoothing)
  const given = JSON.stringify(data.window || null)
  if (given !== self.given) {
    self.given = given
    self.window = data.window || null
    self.sent = given
  }
  if (data.smoothing !== self.givenSmoothing) self.smoothing = self.givenSmoothing = data.smoothing
  self.data = data
  // the page has left out these lines: draw them when the data contain them again
  const lines = data.panels.flatMap((panel) => panel.lines)
  for (const name of self.hidden) if (!lines.some((line) => isNamed(line, name))) self.hidden.delete(name)
  self.panels = smoothPanels(data.panels, self.smoothing)
  root.setAttribute("aria-label", data.alt)
  nameButton(root.querySelector(".enlarge"), data.opens ? "Enlarge" : "Full screen")
  self.draw()
  return () => {
    self.observer.disconnect()
    document.removeEventListener(STRONG, self.onHighlight)
    document.removeEventListener(HIDDEN, self.onHidden)
    document.removeEventListener(LINKED, self.onLinkedChange)
    document.removeEventListener(SMOOTHING, self.onSmoothing)
  }
}

function create(root) {
  const canvas = root.querySelector("canvas")
  const enlarge = root.querySelector(".enlarge")
  const tip = root.querySelector(".tip")
  const self = { window: null, hidden: new Set(), panels: [], strong: null, pointed: null, hover: null, drag: null, boxes: [], hits: [] }
  self.draw = () => draw(self, root, canvas)
  self.isShown = () => root.isConnected // false when another page was opened
  self.observer = new ResizeObserver(() => self.data && self.draw())
  self.onHighlight = ({ detail }) => highlight(self, detail)
  self.onHidden = ({ detail }) => setHidden(self, detail)
  self.onLinkedChange = ({ detail }) => follow(self, detail)
  self.onSmoothing = ({ detail }) => setSmoothing(self, detail)
  listen(self, root, canvas, tip)
  if (enlarge) enlarge.addEventListener("click", () => (self.data.opens ? self.send("opened", true) : toggleFullscreen(root)))
  root.addEventListener("fullscreenchange", () => self.data && self.draw())
  return self
}

function nameButton(button, name) {
  if (!button) return
  button.title = name
  button.setAttribute("aria-label", name)
}

function isFullscreen(root) {
  return root.matches(":fullscreen")
}

function toggleFullscreen(root) {
  if (isFullscreen(root)) document.exitFullscreen()
  else root.requestFullscreen()
}

function highlight(self, name) {
  if (name === self.strong || !self.data) return
  self.strong = name
  self.draw()
}

function setHidden(self, { name, isHidden }) {
  if (!self.data || !self.panels.some((panel) => panel.lines.some((line) => isNamed(line, name)))) return
  if (isHidden) self.hidden.add(name)
  else self.hidden.delete(name)
  self.draw()
}

// Send the window and the cursor of this chart to the linked charts.
function notifyLinkedCharts(self) {
  const { link } = self.data
  if (!link) return
  const detail = { from: self, link, window: self.window, hover: self.hover, pointed: self.pointed }
  document.dispatchEvent(new CustomEvent(LINKED, { detail }))
}

function follow(self, { from, link, window, hover, pointed }) {
  if (from === self || !self.data || self.data.link !== link || self.drag) return
  self.window = window
  self.hover = hover
  self.pointed = pointed
  self.draw()
}

function setSmoothing(self, { link, weight }) {
  if (!self.data || self.data.link !== link) return
  self.smoothing = weight
  self.panels = smoothPanels(self.data.panels, weight)
  self.draw()
}

// Add the exponential moving average of each line and its band, as `smooth_chart` in app/figures/curve_style.py does.
function smoothPanels(panels, weight) {
  if (!weight) return panels
  return panels.map((panel) => ({ ...panel, lines: panel.lines.flatMap((line) => smoothLine(line, weight)) }))
}

function smoothLine(line, weight) {
  if (line.faint || !line.smoothable) return [line]
  const smooth = (values) => values && averageValues(values.map((value, i) => (finite(line.y[i]) ? value : null)), weight)
  const smoothed = { ...line, y: smooth(line.y), lo: smooth(line.lo), hi: smooth(line.hi), measured: line.y }
  return [{ ...line, faint: true, lo: null, hi: null, width: 1, marker: null }, smoothed]
}

function averageValues(values, weight) {
  let [average, total] = [0, 0]
  return values.map((value) => {
    if (!finite(value)) return value
    total = weight * total + 1 // (1 − wᵗ) / (1 − w)
    average += (value - average) / total // a constant line stays exactly constant
    return average
  })
}

function fullWindow(data) {
  if (data.extent) return data.extent
  let low = Infinity
  let high = -Infinity
  for (const panel of data.panels) {
    for (const { x } of panel.lines) {
      if (!x.length) continue
      low = Math.min(low, data.xLog ? x.find((v) => v > 0) ?? Infinity : x[0])
      high = Math.max(high, x[x.length - 1])
    }
  }
  if (low === Infinity) return [0, 1]
  if (data.fromZero) low = 0
  return low === high ? [low - 1, high + 1] : [low, high]
}

// The visible window. On a logarithmic axis, a window that starts at 0 starts at the smallest positive x instead.
function getView({ window, data }) {
  const full = fullWindow(data)
  const [low, high] = window || full
  return data.xLog && !(low > 0 && high > 0) ? [full[0], Math.max(high, full[0] * 1.01)] : [low, high]
}

function draw(self, root, canvas) {
  const { data } = self
  const theme = readTheme(root)
  const measure = canvas.getContext("2d")
  if (!data.panels.length) return drawEmpty(self, canvas, theme)
  const plot = Math.floor(canvas.clientWidth) - LEFT - RIGHT
  const wanted = isFullscreen(root) ? root.clientHeight - 2 * SUBTITLE : data.height || 0
  const hasLegend = data.legend !== false && !isNamedAtEnds(self, measure, theme, canvas.clientWidth)
  const titles = self.panels.map((panel) => {
    const named = { ...panel, lines: hasLegend ? panel.lines : [], isTitled: data.titles !== false }
    return { named, legendLayout: layOutLegend(measure, named, theme, plot + RIGHT - CORNER) }
  })
  const tops = titles.map(({ legendLayout }) => TOP + (legendLayout.rows - 1) * LEGEND_ROW)
  const bottom = data.xTitle === false ? BOTTOM_WITHOUT_TITLE : BOTTOM
  measure.font = `12px ${theme.font}`
  const subtitle = wrapText(measure, data.subtitle || "", plot - CORNER)
  const around = tops.reduce((sum, top) => sum + top, bottom + SUBTITLE * subtitle.length)
  const share = Math.floor((wanted - around) / Math.max(1, tops.length))
  const panelHeight = wanted ? Math.max(MIN_PANEL_HEIGHT, share) : data.panelHeight || 150
  const height = around + panelHeight * tops.length
  const margin = data.link ? 0 : marginForLabels(measure, data, theme, canvas.clientWidth, self.hidden, panelHeight)
  const fit = fitCanvas(canvas, height)
  if (!fit) return
  const view = getView(self)
  let above = SUBTITLE * subtitle.length
  self.view = view
  self.boxes = []
  self.hits = []
  fit.ctx.font = `12px ${theme.font}`
  fit.ctx.fillStyle = theme.soft
  fit.ctx.textAlign = "left"
  subtitle.forEach((text, row) => fit.ctx.fillText(text, LEFT, 13 + row * SUBTITLE))
  self.panels.forEach((panel, row) => {
    above += tops[row]
    const box = { x: LEFT, y: above, width: plot - margin, height: panelHeight }
    above += panelHeight
    const { named, legendLayout } = titles[row]
    self.hits.push(...drawPanelTitle(fit.ctx, box, named, theme, self.hidden, legendLayout))
    const options = {
      xTicks: row === self.panels.length - 1, highlight: getHighlight(self), bands: data.bands, xLog: data.xLog,
      isZoomed: Boolean(self.window),
    }
    const scales = drawPanel(fit.ctx, box, panel, view, theme, self.hidden, options)
    if (margin) self.hits.push(...drawEndLabels(fit.ctx, box, panel, scales, view, theme, self))
    self.boxes.push({ box, panel, ...scales })
  })
  const last = self.boxes[self.boxes.length - 1].box
  fit.ctx.font = `12px ${theme.font}`
  fit.ctx.fillStyle = theme.soft
  fit.ctx.textAlign = "center"
  if (data.xTitle !== false) fit.ctx.fillText(data.xLabel, last.x + last.width / 2, last.y + last.height + 36)
  drawMarks(self, fit.ctx, theme, last)
  drawOverlay(self, fit.ctx, theme, last)
}

// Whether labels at the ends name all lines, so that no legend is needed. A hidden line can be shown only in a legend.
function isNamedAtEnds({ data, hidden }, ctx, theme, width) {
  const lines = data.panels.flatMap((panel) => panel.lines.filter((line) => !line.faint))
  const isComplete = !data.link && !hidden.size && lines.every((line) => line.label && line.y.some(finite))
  return isComplete && marginForLabels(ctx, data, theme, width, hidden, data.panelHeight || 150) > 0
}

// Draw the text `alt` of a chart without lines, with the same height as a chart.
function drawEmpty(self, canvas, theme) {
  const height = self.data.height || MIN_PANEL_HEIGHT
  const fit = fitCanvas(canvas, height)
  self.boxes = []
  self.hits = []
  if (!fit) return
  fit.ctx.font = `12px ${theme.font}`
  fit.ctx.fillStyle = theme.soft
  fit.ctx.textAlign = "center"
  fit.ctx.fillText(self.data.alt, canvas.clientWidth / 2, height / 2, canvas.clientWidth - LEFT)
}

function drawMarks(self, ctx, theme, last) {
  let labelEnd = -Infinity // a label that would cover the one before is left out
  for (const mark of self.data.marks || []) {
    if (mark.x < self.view[0] || mark.x > self.view[1]) continue
    const at = self.boxes[0].sx(mark.x)
    ctx.strokeStyle = theme.soft
    ctx.setLineDash([4, 4])
    ctx.lineWidth = 1
    ctx.beginPath()
    ctx.moveTo(at, TOP)
    ctx.lineTo(at, last.y + last.height)
    ctx.stroke()
    ctx.setLineDash([])
    ctx.fillStyle = theme.soft
    ctx.textAlign = "left"
    ctx.font = `11px ${theme.font}`
    if (at < labelEnd) continue
    ctx.fillText(mark.label, at + 4, TOP + 11)
    labelEnd = at + 4 + ctx.measureText(mark.label).width
  }
}

function drawOverlay(self, ctx, theme, last) {
  if (self.drag && self.drag.mode === "window") {
    const from = Math.min(self.drag.from, self.drag.to)
    ctx.globalAlpha = 0.15
    ctx.fillStyle = theme.primary
    ctx.fillRect(from, TOP, Math.abs(self.drag.to - self.drag.from), last.y + last.height - TOP)
    ctx.globalAlpha = 1
  }
  if (self.hover === null) return
  const at = self.boxes[0].sx(self.hover)
  if (at < last.x || at > last.x + last.width) return
  ctx.strokeStyle = theme.soft
  ctx.lineWidth = 1
  ctx.beginPath()
  ctx.moveTo(at, TOP)
  ctx.lineTo(at, last.y + last.height)
  ctx.stroke()
  for (const { panel, sx, sy, box } of self.boxes) {
    for (const line of panel.lines) {
      if (isHidden(line, self.hidden) || line.faint) continue
      const i = indexAt(line, self.hover, sx)
      if (i < 0 || !finite(line.y[i]) || sx(line.x[i]) < box.x - 1 || sx(line.x[i]) > box.x + box.width + 1) continue
      ctx.fillStyle = line.color
      ctx.beginPath()
      ctx.arc(sx(line.x[i]), sy(line.y[i]), 4, 0, 7)
      ctx.fill()
    }
  }
}

// Show the x of the cursor and each line's value there, the highest first. A line without a point near the cursor has a
// dash and is last. A point further than TIP_REACH from the cursor is shown with its x. With several panels, each
// panel's title is above its lines. The row of the highlighted line is bold.
function fillTip(self, tip) {
  const parts = [textElement("tip-title", `${self.data.xName || self.data.xLabel} ${whole(self.hover)}`)]
  for (const { panel, sx } of self.boxes) {
    const lines = panel.lines.filter((line) => !isHidden(line, self.hidden) && !line.faint)
    if (self.boxes.length > 1 && lines.some((line) => line.name !== panel.title)) parts.push(textElement("tip-panel", panel.title))
    const points = lines.map((line) => ({ line, i: indexAt(line, self.hover, sx) }))
    const getHeight = ({ line, i }) => (i < 0 || !finite(line.y[i]) ? -Infinity : line.y[i])
    for (const { line, i } of points.sort((a, b) => getHeight(b) - getHeight(a) || 0)) {
      const dot = textElement("dot", "", "span")
      dot.style.background = line.color
      const row = textElement("tip-row", "")
      row.classList.toggle("strong", isNamed(line, getHighlight(self).name))
      row.append(dot, `${nameAt(line, i)}: ${i < 0 ? "–" : describePoint(line, i, self.hover, sx)}`)
      parts.push(row)
    }
  }
  tip.replaceChildren(...parts)
}

// Name of a line, with the number of seeds at its i-th point if it summarizes seeds.
function nameAt({ name, nameWithoutCount, n }, i) {
  if (!finite(n) || i < 0) return name
  return `${nameWithoutCount} (n = ${Array.isArray(n) ? n[i] : n})`
}

function textElement(className, text, tag = "div") {
  const element = document.createElement(tag)
  element.className = className
  element.textContent = text
  return element
}

function describePoint({ x, y, lo, hi, measured }, i, hover, sx) {
  const band = lo && finite(lo[i]) ? ` (${formatNumber(lo[i])} – ${formatNumber(hi[i])})` : ""
  const at = Math.abs(sx(x[i]) - sx(hover)) > TIP_REACH ? ` at ${whole(x[i])}` : ""
  const smoothed = measured ? ` smoothed, ${formatNumber(measured[i])} measured` : ""
  return `${formatNumber(y[i])}${band}${smoothed}${at}`
}

// Steps are integers. A small number with a fraction is not a step and is written with its digits.
function whole(value) {
  return Math.abs(value) < 100 && value % 1 ? formatNumber(value) : Math.round(value).toLocaleString("en")
}

function zoomTo(self, window) {
  const full = fullWindow(self.data)
  const span = ([low, high]) => (self.data.xLog ? Math.log(high / low) : high - low)
  self.window = window && span(window) < span(full) * 0.999 ? window : null
  self.draw()
  notifyLinkedCharts(self)
  clearTimeout(self.timer)
  self.timer = setTimeout(() => {
    const parts = self.window && self.window[1] - self.window[0] < WHOLE_NUMBERS_FROM ? 100 : 1
    const rounded = self.window && self.window.map((x) => Math.max(0, Math.round(x * parts) / parts))
    if (JSON.stringify(rounded) === self.sent || !self.isShown()) return
    self.sent = JSON.stringify(rounded)
    self.send("window", rounded || [])
  }, 400)
}

// The highlighted line, and the opacity of the other lines: that of a name, otherwise the one nearest to the pointer.
function getHighlight({ strong, pointed }) {
  return strong ? { name: strong, others: 0.15 } : { name: pointed, others: 0.5 }
}

function listShownLines({ panel }, { hidden }) {
  return panel.lines.filter((line) => !isHidden(line, hidden) && !line.faint)
}

// Name of the line that is nearest to the pointer, in the panel below the pointer; null outside of the panels. A single
// line is not highlighted, unless its band appears with the highlight.
function findNearestLine(self, x, y) {
  const place = self.boxes.find(({ box }) => y >= box.y - 4 && y <= box.y + box.height + 4)
  if (!place) return null
  const lines = listShownLines(place, self)
  if (lines.length < 2 && self.data.bands !== "pointed") return null
  let nearest = null
  let least = Infinity
  for (const line of lines) {
    const i = indexAt(line, self.hover, place.sx)
    const distance = i < 0 || !finite(line.y[i]) ? Infinity : Math.abs(place.sy(line.y[i]) - y)
    if (distance < least) [nearest, least] = [line.name, distance]
  }
  return nearest
}

// Highlight the line after or before the highlighted one, in the order of the lines; none after the last one.
function highlightNext(self, step) {
  const names = [...new Set(self.boxes.flatMap((place) => listShownLines(place, self).map((line) => line.name)))]
  const places = [null, ...names]
  self.pointed = places.at((Math.max(0, places.indexOf(self.pointed)) + step) % places.length)
  self.draw()
  notifyLinkedCharts(self)
}

// Place the tooltip at the right or left of the pointer, inside of the chart and of the window of the browser. On a
// chart that is too narrow for this, place it below the pointer, or above it if there is not enough space.
function placeTip(tip, { x, y, frame }) {
  const [width, height] = [tip.offsetWidth, tip.offsetHeight]
  const left = x > frame.width / 2 ? x - width - TIP_GAP : x + TIP_GAP
  const isBeside = left >= 0 && left + width <= frame.width
  const lowest = Math.min(frame.height, innerHeight - frame.top) - height - 8
  const below = y + 2 * TIP_GAP
  const top = below + height < innerHeight - frame.top ? below : y - height - 2 * TIP_GAP
  tip.style.left = `${Math.max(0, Math.min(left, frame.width - width))}px`
  tip.style.top = `${isBeside ? Math.max(8, Math.min(y - 20, lowest)) : top}px`
}

function hitAt(self, x, y) {
  return self.hits.find((h) => x >= h.x && x <= h.x + h.width && y >= h.y && y <= h.y + h.height)
}

function listen(self, root, canvas, tip) {
  const place = (event) => {
    const frame = canvas.getBoundingClientRect()
    return { x: event.clientX - frame.left, y: event.clientY - frame.top, frame }
  }
  const isDrawn = () => self.boxes.length > 0
  const valueAt = (x) => self.boxes[0].sx.invert(x)
  // The window after its edges are moved by a fraction of the plot width.
  const moved = (left, right, { box, sx } = self.boxes[0]) => [box.x + left * box.width, box.x + (1 + right) * box.width].map(sx.invert)
  canvas.addEventListener("pointerdown", (event) => {
    if (!isDrawn()) return
    const { x, y } = place(event)
    const hit = hitAt(self, x, y)
    if (hit) {
      if (!self.hidden.delete(hit.name)) self.hidden.add(hit.name)
      self.draw()
      return
    }
    canvas.setPointerCapture(event.pointerId)
    self.drag = { mode: event.shiftKey ? "pan" : "window", from: x, to: x, place: self.boxes[0] }
  })
  canvas.addEventListener("pointermove", (event) => {
    if (!isDrawn()) return
    const { x, y, frame } = place(event)
    const named = self.drag ? null : hitAt(self, x, y)
    canvas.style.cursor = named ? "pointer" : ""
    self.strong = named ? named.name : null
    if (named) {
      self.hover = null
      self.pointed = null
      tip.hidden = true
      self.draw()
      notifyLinkedCharts(self)
      return
    }
    self.hover = valueAt(x)
    self.pointed = self.drag ? null : findNearestLine(self, x, y)
    if (self.drag) {
      self.drag.to = x
      if (self.drag.mode === "pan") {
        const shift = (self.drag.from - x) / self.drag.place.box.width
        self.window = moved(shift, shift, self.drag.place)
      }
    }
    self.draw()
    notifyLinkedCharts(self)
    fillTip(self, tip)
    tip.hidden = false
    placeTip(tip, { x, y, frame })
  })
  canvas.addEventListener("pointerup", () => {
    const { drag } = self
    self.drag = null
    if (!drag) return
    if (drag.mode === "pan") zoomTo(self, self.window)
    else if (Math.abs(drag.to - drag.from) > 8) zoomTo(self, [drag.from, drag.to].sort((a, b) => a - b).map(valueAt))
    else if (self.data.opens) self.send("opened", true)
    else self.draw()
  })
  canvas.addEventListener("pointerleave", () => {
    self.hover = null
    self.strong = null
    self.pointed = null
    tip.hidden = true
    if (!self.data) return
    self.draw()
    notifyLinkedCharts(self)
  })
  canvas.addEventListener("wheel", (event) => {
    if (!isDrawn() || (!event.ctrlKey && !event.shiftKey)) return
    event.preventDefault()
    const { box } = self.boxes[0]
    const [at, by] = [(place(event).x - box.x) / box.width, (event.deltaY || event.deltaX) > 0 ? 0.2 : 1 / 1.2 - 1]
    zoomTo(self, moved(-at * by, (1 - at) * by))
  }, { passive: false })
  canvas.addEventListener("dblclick", () => zoomTo(self, null))
  root.addEventListener("keydown", (event) => {
    const moves = {
      ArrowLeft: [-0.1, -0.1], ArrowRight: [0.1, 0.1], "+": [0.15, -0.15], "=": [0.15, -0.15], "-": [-0.15, 0.15],
    }
    if (event.key === "Escape") zoomTo(self, null)
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") highlightNext(self, event.key === "ArrowDown" ? 1 : -1)
    else if (moves[event.key] && isDrawn()) zoomTo(self, moved(...moves[event.key]))
    else return
    event.preventDefault()
    event.stopPropagation()
  })
}
