// The memory as a cloud of points. Its columns come once, each from an address of its own; place, colour, filter,
// selection and paths are decided here. What is chosen leaves as events (`emtc-pick`, `emtc-select`, `emtc-view`) that
// the small listeners of the page's other parts hear (listener.js), so that no click draws the map again.

const REACH = 14
const QUIET_MS = 350
const NOTHING = { selected: null, at: null, traces: [], every: 10 }

export default function atlas({ data, parentElement }) {
  const root = parentElement.querySelector(".atlas")
  const self = root.state || (root.state = create(root))
  self.observer.observe(root)
  take(self, data).catch((fault) => {
    self.root.querySelector(".status").textContent = String(fault.message || fault)
  })
  return () => self.observer.disconnect()
}

function create(root) {
  const self = { root, view: null, hover: -1, echo: -1, linked: null, head: window.emtcCursor ?? null, mark: NOTHING, filters: {}, polygon: null, tool: "pan", columns: {}, extents: {}, histograms: {}, drawn: 0 }
  self.canvas = root.querySelector(".points")
  self.over = root.querySelector(".over")
  self.tip = root.querySelector(".tip")
  self.stageBox = root.querySelector(".stage")
  self.draw = () => {
    self.stale = true
    self.drawOver()
  }
  self.drawOver = () => { // one picture per frame; an awaited one is never put off, or growth would never be seen
    self.next ||= requestAnimationFrame(() => {
      self.next = 0
      if (self.grid) drawAll(self)
    })
  }
  self.observer = new ResizeObserver(self.draw)
  heed(self, "emtc-mark", (detail) => {
    if (!self.meta || detail.channel !== self.meta.channel) return
    self.mark = detail
    self.drawOver()
  })
  heed(self, "emtc-cursor", (detail) => {
    self.head = detail.t
    if (self.mark.traces.length) self.drawOver()
  })
  heed(self, "emtc-together", (detail) => {
    if (self.meta?.group && detail.group === self.meta.group && detail.channel !== self.meta.channel) join(self, detail)
  })
  buildControls(self)
  listen(self)
  return self
}

// Listen to the page for as long as this map stands in it.
function heed(self, name, act) {
  const listener = (event) => {
    if (self.meta && !self.root.isConnected) window.removeEventListener(name, listener)
    else act(event.detail)
  }
  window.addEventListener(name, listener)
}

// Take what the server says: addresses of the columns, and once what the page's address asks to see. Until all that is
// needed has come, the picture before stays as it is.
async function take(self, meta) {
  self.coming = meta
  const kept = self.meta && columnOf(meta, "slot").url === columnOf(self.meta, "slot").url
  const columns = kept ? self.columns : {}
  const extents = kept ? self.extents : {}
  const asked = !self.meta || meta.asked !== self.meta.asked
  const { color, filters } = asked ? meta.view : self
  const wanted = columnOf(meta, color) ? color : meta.columns[1].key
  const [x, y] = await Promise.all([loadColumn(meta.x), loadColumn(meta.y), fillColumns(meta, columns, extents, ["slot", wanted, ...Object.keys(filters)])])
  if (self.coming !== meta) return
  const { palette, polygon, camera } = asked ? meta.view : { ...self, camera: self.view }
  const otherPlane = !asked && meta.kind !== self.meta.kind
  Object.assign(self, { meta, x, y, columns, extents, palette, color: wanted, hover: -1, echo: -1, linked: null, grid: gridOf(x, y), filters: { ...filters } })
  Object.assign(self, otherPlane ? { view: null, polygon: null } : { view: camera, polygon })
  if (!kept) self.histograms = {}
  self.chosen = chosenOf(self.grid, columns, self.filters, self.polygon)
  self.count = countOf(self.chosen)
  self.mark = (window.emtcMarks || {})[meta.channel] || NOTHING
  self.root.setAttribute("aria-label", meta.alt)
  self.root.toggleAttribute("data-group", Boolean(meta.group))
  repaint(self)
  fillControls(self)
  if (otherPlane) tellSelection(self)
  self.root.dataset.ready = String(meta.n)
}

function columnOf(meta, key) {
  return meta.columns.find((each) => each.key === key)
}

// Fetch the columns that are needed and not here yet.
function needColumns(self, keys) {
  return fillColumns(self.meta, self.columns, self.extents, keys)
}

async function fillColumns(meta, columns, extents, keys) {
  await Promise.all(keys.map(async (key) => {
    const column = columnOf(meta, key)
    if (!column || columns[key]) return
    columns[key] = await loadColumn(column)
    extents[key] = extentOfColumn(columns[key])
  }))
}

function extentOfColumn(values) {
  let [low, high] = [Infinity, -Infinity]
  for (let i = 0; i < values.length; i += 1) {
    if (values[i] < low) low = values[i]
    if (values[i] > high) high = values[i]
  }
  return high >= low ? [low, high] : [0, 0]
}

async function recolor(self, key) {
  await needColumns(self, [key])
  self.color = key
  repaint(self)
  tellView(self)
  share(self, { color: key })
}

// Colour every point anew.
function repaint(self) {
  self.quantity = columnOf(self.meta, self.color)
  const { low, high, binary } = self.quantity
  self.lut = binary && self.palette === self.meta.usual ? self.meta.two : self.meta.palettes[self.palette].lut
  self.packed = packColors(self.lut)
  self.inks = inksOf(self.grid, self.columns[self.color], low, high)
  self.draw()
  showState(self)
}

// Apply filters and lasso anew.
async function chooseAgain(self, { quiet = false, linked = null } = {}) {
  self.linked = linked
  await needColumns(self, Object.keys(self.filters))
  self.chosen = chosenOf(self.grid, self.columns, self.filters, self.polygon)
  if (self.linked) keepSlots(self.grid, self.columns.slot, self.linked, self.chosen)
  self.count = countOf(self.chosen)
  self.draw()
  showState(self)
  if (quiet) return
  tellSelection(self)
  shareChoice(self)
}

function drawAll(self) {
  const height = self.stageBox.clientHeight
  const over = fitCanvas(self.over, height)
  if (!over) return
  const moved = self.width !== over.width || self.height !== height
  Object.assign(self, { width: over.width, height })
  self.scales = scalesOf(self, over.width, height)
  if (self.stale || moved) {
    const dense = self.dense
    drawPicture(self, fitCanvas(self.canvas, height))
    self.stale = false
    self.drawn += 1
    if (dense !== self.dense) showState(self)
  }
  drawOverlay(self, over)
}

function drawOverlay(self, { ctx, width, height }) {
  const theme = themeOf(self.root)
  drawAxes(self, ctx, theme, width, height)
  drawLasso(self, ctx, theme, self.polygon, false)
  drawLasso(self, ctx, theme, self.lasso, true)
  drawFew(self, ctx, theme)
  self.mark.traces.forEach((trace) => drawTrace(self, ctx, theme, trace))
  for (const place of self.mark.near || []) drawRing(self, ctx, theme, place, 1.2, 6)
  drawNames(self, ctx, theme)
  drawScale(self, ctx, theme)
  drawRing(self, ctx, theme, self.mark.at, 3)
  if (self.echo >= 0) drawRing(self, ctx, theme, [self.x[self.echo], self.y[self.echo]], 1.5)
  if (self.hover >= 0) drawRing(self, ctx, theme, [self.x[self.hover], self.y[self.hover]], 1.5)
}

// Which path is which, where there are several.
function drawNames(self, ctx, theme) {
  if (self.mark.traces.length < 2) return
  ctx.font = `600 12px ${theme.font}`
  ctx.textAlign = "left"
  ctx.textBaseline = "middle"
  self.mark.traces.forEach(({ label, color }, row) => {
    const y = self.height - 34 - 18 * (self.mark.traces.length - 1 - row)
    dot(ctx, theme, 34, y, 5, color)
    haloText(ctx, theme, label, 46, y, theme.text)
  })
}

// A point in words: its id and every quantity that is here; the rest comes while the pointer rests.
function describe(self, i) {
  const told = self.meta.columns.filter((each) => self.columns[each.key] && each.key !== "slot")
  const say = ({ words }, v) => (Number.isNaN(v) ? "–" : words ? words[v] : formatNumber(v))
  return [`memory ${self.columns.slot[i]}`, ...told.map((each) => `${each.name}  ${say(each, self.columns[each.key][i])}`)].join("\n")
}

function hoverOver(self, px, py) {
  const found = pickPoint(self.grid, self.chosen, self.scales, px, py, REACH)
  if (found !== self.hover) {
    self.hover = found
    self.drawOver()
    share(self, { hover: found < 0 ? null : self.columns.slot[found] })
  }
  const { tip } = self
  tip.hidden = found < 0
  if (self.tool === "pan") self.over.style.cursor = found < 0 ? "grab" : "pointer"
  if (found < 0) return
  const write = () => {
    tip.textContent = describe(self, found)
    tip.style.left = `${px > self.width / 2 ? px - tip.offsetWidth - 14 : px + 14}px`
    tip.style.top = `${Math.max(4, Math.min(py + 12, self.height - tip.offsetHeight - 4))}px`
  }
  write()
  needColumns(self, self.meta.columns.map((each) => each.key)).then(() => self.hover === found && write())
}

function choose(self, i) {
  const t = self.mark.traces[0]?.places.findIndex((place) => place && place[0] === self.x[i] && place[1] === self.y[i]) ?? -1
  if (self.mark.seek) { // this map only follows: a press on the path moves the cursor of the player beside it
    if (t >= 0) window.dispatchEvent(new CustomEvent("emtc-seek", { detail: { t } }))
    return
  }
  self.mark = { ...self.mark, selected: self.columns.slot[i], at: [self.x[i], self.y[i]], traces: [] }
  self.drawOver()
  tell(self, "pick", { slot: self.columns.slot[i] })
}

function tell(self, what, detail) {
  window.dispatchEvent(new CustomEvent(`emtc-${what}`, { detail: { channel: self.meta.channel, ...detail } }))
}

function tellView(self) {
  clearTimeout(self.viewTimer)
  self.viewTimer = setTimeout(() => {
    const { x, y, span, whole } = self.view
    const camera = whole ? "" : [x, y, span].map((v) => +v.toPrecision(7)).join(",")
    tell(self, "view", { color: self.color, palette: self.palette, camera })
  }, QUIET_MS)
}

function tellSelection(self) {
  clearTimeout(self.selectionTimer)
  self.selectionTimer = setTimeout(() => {
    const polygon = (self.polygon || []).map((at) => at.join(",")).join(";")
    const filters = Object.entries(self.filters).map(([key, ends]) => [key, ...ends].join(":")).join(";")
    tell(self, "select", { polygon, filters })
  }, 60)
}

// Tell the other maps of the group what happened here.
function share(self, what) {
  const { channel, group, run, kind } = self.meta
  if (group) window.dispatchEvent(new CustomEvent("emtc-together", { detail: { channel, group, run, kind, ...what } }))
}

// What is chosen, by slot, for maps of the same memories; for others the filters alone.
function shareChoice(self) {
  if (!self.meta.group) return
  const whole = self.polygon === null && !Object.keys(self.filters).length
  share(self, { filters: { ...self.filters }, slots: whole ? null : slotsOf(self.grid, self.columns.slot, self.chosen) })
}

// Do as another map of the group did, as far as it means something here.
function join(self, { run, kind, view, color, palette, hover, filters, slots }) {
  const same = run === self.meta.run
  if (view && same && kind === self.meta.kind) {
    self.view = { ...view }
    self.draw()
  }
  if (hover !== undefined) {
    self.echo = same && hover !== null ? self.columns.slot.indexOf(hover) : -1
    self.drawOver()
  }
  if (filters) {
    self.polygon = null
    self.filters = same ? {} : { ...filters }
    chooseAgain(self, { quiet: true, linked: same ? slots : null })
  }
  if (color || palette) {
    needColumns(self, [color || self.color]).then(() => {
      self.color = color || self.color
      self.palette = palette || self.palette
      repaint(self)
      fillControls(self)
    })
  }
}

function moved(self) {
  self.view.whole = false
  self.draw()
  tellView(self)
  share(self, { view: self.view })
}

function zoomAt(self, factor, px, py) {
  const { view, scales } = self
  const [ux, uy] = [scales.ux(px), scales.uy(py)]
  const span = Math.max(scales.whole / 4000, Math.min(scales.whole * 2, view.span / factor))
  view.x = ux - (ux - view.x) * (span / view.span)
  view.y = uy - (uy - view.y) * (span / view.span)
  view.span = span
  moved(self)
}

function reset(self) {
  self.view = null
  self.scales = scalesOf(self, self.width, self.height)
  self.draw()
  tellView(self)
}

function listen(self) {
  const { over, root } = self
  const place = (event) => {
    const frame = over.getBoundingClientRect()
    return [event.clientX - frame.left, event.clientY - frame.top]
  }
  over.addEventListener("pointerdown", (event) => {
    if (!self.grid) return
    over.setPointerCapture(event.pointerId)
    self.drag = { from: place(event), view: { ...self.view }, moved: false }
    if (self.tool !== "pan") self.lasso = []
  })
  over.addEventListener("pointermove", (event) => {
    if (!self.scales) return
    if (self.drag) dragTo(self, ...place(event))
    else hoverOver(self, ...place(event))
  })
  over.addEventListener("pointerup", (event) => {
    const { drag, lasso } = self
    self.drag = self.lasso = null
    if (!drag) return
    if (lasso && drag.moved) {
      self.polygon = thinPolygon(lasso, MOST_CORNERS)
      chooseAgain(self)
    } else if (!drag.moved) {
      const found = pickPoint(self.grid, self.chosen, self.scales, ...place(event), REACH)
      if (found >= 0) choose(self, found)
    }
    self.drawOver()
  })
  over.addEventListener("pointerleave", () => {
    self.hover = -1
    self.tip.hidden = true
    self.drawOver()
  })
  over.addEventListener("wheel", (event) => {
    event.preventDefault()
    if (self.scales) zoomAt(self, event.deltaY > 0 ? 1 / 1.18 : 1.18, ...place(event))
  }, { passive: false })
  over.addEventListener("dblclick", () => reset(self))
  root.addEventListener("keydown", (event) => event.target === root && onKey(self, event))
}

function dragTo(self, px, py) {
  const { drag, scales } = self
  const [dx, dy] = [px - drag.from[0], py - drag.from[1]]
  drag.moved ||= Math.hypot(dx, dy) > 4
  if (!drag.moved) return
  self.tip.hidden = true
  if (self.tool === "pan") {
    Object.assign(self.view, { x: drag.view.x - dx / scales.kx, y: drag.view.y + dy / scales.ky })
    moved(self)
  } else if (self.tool === "lasso") {
    self.lasso.push([scales.ux(px), scales.uy(py)])
    self.drawOver()
  } else {
    const [x0, y0] = drag.from
    self.lasso = [[x0, y0], [px, y0], [px, py], [x0, py]].map(([x, y]) => [scales.ux(x), scales.uy(y)])
    self.drawOver()
  }
}

function onKey(self, event) {
  if (!self.grid) return
  const step = 40
  const pans = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }
  if (pans[event.key]) {
    self.view.x += pans[event.key][0] / self.scales.kx
    self.view.y += pans[event.key][1] / self.scales.ky
    moved(self)
  } else if (event.key === "+" || event.key === "=") zoomAt(self, 1.3, self.width / 2, self.height / 2)
  else if (event.key === "-") zoomAt(self, 1 / 1.3, self.width / 2, self.height / 2)
  else if (event.key === "0") reset(self)
  else if (event.key === "s") selectView(self)
  else if (event.key === "Escape") clearChoice(self)
  else if (event.key === "n" || event.key === "p") {
    const at = self.columns.slot.indexOf(self.mark.selected)
    const next = at < 0 ? 0 : (at + (event.key === "n" ? 1 : -1) + self.x.length) % self.x.length
    if (self.x.length) choose(self, next)
  } else return
  event.preventDefault()
  event.stopPropagation()
}
