// The controls of a map: color, tools, filters with histograms, search, growth. A control changes the state and draws
// the map again, without the server. Names and numbers are set as text, never as HTML.

const BINS = 48
const FILTER_STEPS = 1000
const MAX_CORNERS = 60
const GROWTH_MS = 8000

function buildControls(self) {
  const { root } = self
  const on = (name, event, act) => root.querySelector(name).addEventListener(event, act)
  on(".color", "change", (event) => recolor(self, event.target.value))
  for (const tool of ["pan", "lasso", "box"]) on(`.${tool}`, "click", () => setTool(self, tool))
  on(".filter", "click", () => openFilters(self, root.querySelector(".filters").hidden))
  on(".clear", "click", () => clearSelection(self))
  on(".view", "click", () => selectView(self))
  on(".find", "change", (event) => search(self, event.target))
  on(".grow", "click", () => (self.growing ? stopGrowth(self) : startGrowth(self)))
  on(".in", "click", () => zoomAt(self, 1.4, self.width / 2, self.height / 2))
  on(".out", "click", () => zoomAt(self, 1 / 1.4, self.width / 2, self.height / 2))
  on(".all", "click", () => reset(self))
  on(".full", "click", () => (document.fullscreenElement ? document.exitFullscreen() : root.requestFullscreen()))
}

function fillControls(self) {
  const { root, meta } = self
  const select = root.querySelector(".color")
  select.replaceChildren(...meta.columns.filter((each) => each.colored).map((each) => {
    const option = new Option(`${each.name} [${each.unit}]`, each.key)
    option.title = each.meaning
    return option
  }))
  select.value = self.color
  setTool(self, self.tool)
  root.querySelector(".filters").replaceChildren()
  openFilters(self, !root.querySelector(".filters").hidden)
  updateStatus(self)
}

function setTool(self, tool) {
  self.tool = tool
  for (const name of ["pan", "lasso", "box"]) self.root.querySelector(`.${name}`).setAttribute("aria-pressed", String(name === tool))
  self.over.style.cursor = tool === "pan" ? "grab" : "crosshair"
}

// Fill the legend of the colors above the map, where it covers no point: a color scale with numbers, or named dots.
function fillLegend(self) {
  const { name, low, high, binary, noEffect, log, words, ends } = self.quantity
  const scale = element("div", "scale")
  const addDot = (color, text) => {
    const dot = element("span", "dot")
    dot.style.background = color
    const named = element("span", "named")
    named.append(dot, text)
    scale.append(named)
  }
  const last = self.lut.length - 1
  if (binary) words.forEach((word, value) => addDot(self.lut[value ? last : 0], word))
  else if (self.nColored && low === high) addDot(self.lut[last >> 1], formatNumber(low))
  else if (self.nColored) scale.append(makeStrip(self.lut, low, high, log))
  if (noEffect !== null) addDot(`rgb(${GREY})`, `${name} = ${formatNumber(noEffect)}`)
  const title = element("div", "title", [ends, log ? "log scale" : ""].filter(Boolean).join(", "))
  title.title = title.textContent
  self.root.querySelector(".legend").replaceChildren(title, scale)
}

// A strip with the colors and, below it, the values at both ends and, on a logarithmic scale, between them.
function makeStrip(lut, low, high, log) {
  const strip = element("div", "strip")
  const stops = lut.map((color, i) => `${color} ${(100 * i) / lut.length}% ${(100 * (i + 1)) / lut.length}%`)
  strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`
  const partOf = log ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low)
  const between = log ? logTicks(low, high, 3).filter((v) => partOf(v) > 0.2 && partOf(v) < 0.8) : []
  for (const value of [low, ...between, high]) {
    const tick = element("span", value === low ? "tick first" : value === high ? "tick last" : "tick", formatNumber(value))
    tick.style.left = `${100 * partOf(value)}%`
    strip.append(tick)
  }
  return strip
}

// Update the status line (number of points and of selected points) and the state of the buttons.
function updateStatus(self) {
  const { grid, meta } = self
  const active = Object.keys(self.filters).length
  const all = self.polygon === null && !active && !self.linked
  const write = (number) => number.toLocaleString("en-US")
  const sample = meta.n < meta.nMemory ? " (a sample)" : ""
  const parts = grid.n < meta.nMemory ? [`${write(grid.n)} of the memory's ${write(meta.nMemory)} nodes${sample}`] : [`All ${write(grid.n)} nodes`]
  if (grid.n < meta.n) parts.push(`${write(meta.n - grid.n)} without coordinates`)
  if (!all) parts.push(`${write(self.count)} selected, the others gray`)
  else if (self.nColored < grid.n) parts.push(`${write(self.nColored)} colored, the others gray`)
  if (self.dense) parts.push("density; zoom in for single points")
  self.root.querySelector(".status").textContent = parts.join(" · ")
  self.root.querySelector(".clear").disabled = all // not hidden, so that the other buttons do not move
  self.root.querySelector(".filter").textContent = active ? `Filter (${active})` : "Filter"
  self.root.querySelector(".grow").textContent = self.growing ? "■ Growth" : "▶ Growth"
  self.root.dataset.chosen = String(self.count)
}

function clearSelection(self) {
  stopGrowth(self)
  self.filters = {}
  self.polygon = null
  self.root.querySelector(".filters").replaceChildren()
  openFilters(self, !self.root.querySelector(".filters").hidden)
  updateSelection(self)
}

// Select all points in the current view. This works without a mouse.
function selectView(self) {
  const { ux, uy } = self.scales
  const [x0, x1, y0, y1] = [ux(0), ux(self.width), uy(self.height), uy(0)]
  self.polygon = thinPolygon([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], MAX_CORNERS)
  updateSelection(self)
}

// "12" or "memory 12" selects a memory. "episode 3" filters the memories that this episode wrote.
async function search(self, input) {
  const [, word, digits] = /^\s*(memory|slot|episode|e|m)?\s*(\d+)\s*$/i.exec(input.value) || []
  input.setCustomValidity("")
  if (!digits) {
    if (input.value) input.setCustomValidity("Type a memory id, for example 12, or an episode, for example episode 3.")
    input.reportValidity()
    return
  }
  if (/^e/i.test(word || "")) {
    await loadColumns(self, ["episode"])
    if (!self.columns.episode.includes(Number(digits))) {
      input.setCustomValidity(`No memory of episode ${digits} on this map.`)
      input.reportValidity()
      return
    }
    self.filters.episode = [Number(digits), Number(digits)]
    await updateSelection(self)
    zoomToSelection(self)
    return
  }
  const i = self.columns.slot.indexOf(Number(digits))
  if (i < 0) {
    input.setCustomValidity(`No memory ${digits} on this map.`)
    input.reportValidity()
    return
  }
  self.view = { ...self.view, x: self.x[i], y: self.y[i], span: Math.min(self.view.span, self.scales.whole / 4), whole: false }
  selectPoint(self, i)
  sendView(self)
}

// Move the camera so that all selected points are visible, with a margin.
function zoomToSelection(self) {
  const { grid, chosen, scales, width, height } = self
  const rows = [...chosen.keys()].filter((k) => chosen[k])
  if (!rows.length) return
  const around = findBounds(rows.map((k) => grid.x[k]), rows.map((k) => grid.y[k]))
  const high = ((around.y1 - around.y0) * width * scales.ky) / (height * scales.kx)
  const span = Math.min(scales.whole, Math.max(1.3 * (around.x1 - around.x0), 1.3 * high, scales.whole / 50))
  self.view = { x: (around.x0 + around.x1) / 2, y: (around.y0 + around.y1) / 2, span, whole: false }
  onCameraMove(self)
}

// Show the memories in the order in which they were written.
async function startGrowth(self) {
  await loadColumns(self, ["age"])
  const [, oldest] = self.extents.age
  const began = performance.now()
  const step = () => {
    if (!self.growing) return
    const part = Math.min(1, (performance.now() - began) / GROWTH_MS)
    self.filters.age = [oldest * (1 - part), oldest]
    if (part === 1) {
      stopGrowth(self)
      return
    }
    updateSelection(self, { quiet: true })
    self.growing = requestAnimationFrame(step)
  }
  self.growing = requestAnimationFrame(step)
}

function stopGrowth(self) {
  if (!self.growing) return
  cancelAnimationFrame(self.growing)
  self.growing = 0
  delete self.filters.age
  updateSelection(self)
}

async function openFilters(self, open) {
  const panel = self.root.querySelector(".filters")
  panel.hidden = !open
  self.root.querySelector(".filter").setAttribute("aria-expanded", String(open))
  self.draw() // the size of the map has changed
  if (!open || panel.childElementCount) return
  await loadColumns(self, self.meta.columns.map((each) => each.key))
  if (!panel.childElementCount) panel.append(...self.meta.columns.filter((each) => each.key !== "slot").map((each) => filterRow(self, each)))
  panel.querySelectorAll("canvas").forEach((canvas) => canvas.dispatchEvent(new Event("paint")))
}

function filterRow(self, column) {
  const [low, high] = self.extents[column.key]
  const row = element("div", "row")
  const title = element("div", "title", `${column.name} [${column.unit}]`)
  const rangeText = element("span", "values")
  const canvas = element("canvas", "histogram")
  const ends = ["from", "to"].map((word) => {
    const input = element("input")
    Object.assign(input, { type: "range", min: 0, max: FILTER_STEPS, step: 1 })
    input.setAttribute("aria-label", `${column.name}, ${word}`)
    return input
  })
  const valueAt = (input) => (column.whole ? Math.round : (v) => +v.toPrecision(6))(low + ((high - low) * input.value) / FILTER_STEPS)
  const show = () => {
    const [from, to] = self.filters[column.key] || [low, high]
    rangeText.textContent = `${formatNumber(from)} – ${formatNumber(to)}`
    drawHistogram(self, canvas, column, [from, to])
  }
  const [from, to] = self.filters[column.key] || [low, high]
  ends[0].value = ((from - low) / (high - low || 1)) * FILTER_STEPS
  ends[1].value = ((to - low) / (high - low || 1)) * FILTER_STEPS
  ends.forEach((input, end) => input.addEventListener("input", () => {
    if (Number(ends[0].value) > Number(ends[1].value)) ends[1 - end].value = input.value
    const whole = Number(ends[0].value) === 0 && Number(ends[1].value) === FILTER_STEPS
    if (whole) delete self.filters[column.key]
    else self.filters[column.key] = [valueAt(ends[0]), valueAt(ends[1])]
    show()
    updateSelection(self)
  }))
  canvas.addEventListener("paint", show)
  title.append(rangeText)
  row.title = column.meaning
  row.append(title, canvas, ...ends)
  return row
}

function drawHistogram(self, canvas, column, [from, to]) {
  const fit = fitCanvas(canvas, 34)
  if (!fit) return
  const theme = readTheme(self.root)
  const [low, high] = self.extents[column.key]
  const counts = (self.histograms[column.key] ||= countHistogram(self.columns[column.key], low, high, BINS))
  const most = Math.max(1, ...counts)
  counts.forEach((count, bin) => {
    const middle = low + ((bin + 0.5) / BINS) * (high - low)
    fit.ctx.fillStyle = middle >= from && middle <= to ? theme.primary : theme.faint
    const height = count ? Math.max(1, (32 * Math.log1p(count)) / Math.log1p(most)) : 0 // logarithmic, so that rare values are visible
    fit.ctx.fillRect((bin * fit.width) / BINS, 34 - height, fit.width / BINS - 1, height)
  })
}

function element(tag, name, text) {
  const made = document.createElement(tag)
  if (name) made.className = name
  if (text) made.textContent = text
  return made
}
