// Map of a memory as a cloud of points. A point is a node: one stored state of the memory, identified by its slot.
// `self.mark` is what is drawn above the points: rings around nodes, and the paths of episodes. `self.chosen` is the mask
// of the selected points; `self.hover` is the point under the pointer, `self.otherMapHover` that of another map.
//
// Each column of data has a URL and is loaded once. Camera, color, filters,
// selection and paths are handled in the browser. The map sends events (`emtc-pick`, `emtc-select`, `emtc-view`) to
// the listeners of the other parts of the page (listener.js). So a click does not make Streamlit draw the map again.

const PICK_RADIUS = 14
const QUIET_MS = 350
const NO_MARK = { selected: null, selectedPoint: null, paths: [], stepsPerMark: 10 }

export default function atlas({ data, parentElement }) {
  const root = parentElement.querySelector(".atlas")
  const self = root.state || (root.state = create(root))
  self.observer.observe(root)
  applyData(self, data).catch((fault) => {
    self.root.querySelector(".status").textContent = String(fault.message || fault)
  })
  return () => self.observer.disconnect()
}

function create(root) {
  const self = { root, view: null, hover: -1, otherMapHover: -1, linked: null, playerStep: window.emtcCursor ?? null, mark: NO_MARK, filters: {}, polygon: null, tool: "pan", columns: {}, extents: {}, histograms: {}, drawn: 0 }
  self.canvas = root.querySelector(".points")
  self.over = root.querySelector(".over")
  self.tip = root.querySelector(".tip")
  self.stageBox = root.querySelector(".stage")
  self.draw = () => {
    self.stale = true
    self.drawOver()
  }
  self.drawOver = () => { // at most one drawing per frame; a pending one is not postponed, or growth would be invisible
    self.frameRequest ||= requestAnimationFrame(() => {
      self.frameRequest = 0
      if (self.grid) drawAll(self)
    })
  }
  self.observer = new ResizeObserver(self.draw)
  listenWhileConnected(self, "emtc-mark", (detail) => {
    if (!self.meta || detail.channel !== self.meta.channel) return
    self.mark = detail
    self.drawOver()
  })
  listenWhileConnected(self, "emtc-cursor", (detail) => {
    self.playerStep = detail.t
    if (self.mark.paths.length) self.drawOver()
  })
  listenWhileConnected(self, "emtc-together", (detail) => {
    if (self.meta?.group && detail.group === self.meta.group && detail.channel !== self.meta.channel) applyShared(self, detail)
  })
  buildControls(self)
  listen(self)
  return self
}

// Handle an event of the window until this map is removed from the page.
function listenWhileConnected(self, name, handle) {
  const listener = (event) => {
    if (self.meta && !self.root.isConnected) window.removeEventListener(name, listener)
    else handle(event.detail)
  }
  window.addEventListener(name, listener)
}

// Apply new data from the server: the URLs of the columns, and the view if the page's URL has changed (`meta.tourStep`).
// The old picture stays until all columns are loaded.
async function applyData(self, meta) {
  self.pendingMeta = meta
  const isSameSnapshot = self.meta && findColumn(meta, "slot").url === findColumn(self.meta, "slot").url
  const columns = isSameSnapshot ? self.columns : {}
  const extents = isSameSnapshot ? self.extents : {}
  const useView = !self.meta || meta.tourStep !== self.meta.tourStep
  const { color, filters } = useView ? meta.view : self
  const colorKey = findColumn(meta, color) ? color : meta.columns[1].key
  const [x, y] = await Promise.all([loadColumn(meta.x), loadColumn(meta.y), loadMissingColumns(meta, columns, extents, ["slot", colorKey, ...Object.keys(filters)])])
  if (self.pendingMeta !== meta) return
  const { polygon, camera } = useView ? meta.view : { polygon: self.polygon, camera: self.view }
  const otherPlane = !useView && meta.kind !== self.meta.kind
  Object.assign(self, { meta, x, y, columns, extents, color: colorKey, hover: -1, otherMapHover: -1, linked: null, grid: makeGrid(x, y), filters: { ...filters } })
  Object.assign(self, otherPlane ? { view: null, polygon: null } : { view: camera, polygon })
  if (!isSameSnapshot) self.histograms = {}
  self.chosen = computeMask(self.grid, columns, self.filters, self.polygon)
  self.count = countSelected(self.chosen)
  self.mark = (window.emtcMarks || {})[meta.channel] || NO_MARK
  self.root.setAttribute("aria-label", meta.alt)
  self.root.toggleAttribute("data-group", Boolean(meta.group))
  recolorPoints(self)
  fillControls(self)
  if (otherPlane) sendSelection(self)
  self.root.dataset.ready = String(meta.n)
}

function findColumn(meta, key) {
  return meta.columns.find((each) => each.key === key)
}

// Load the columns that are not loaded yet.
function loadColumns(self, keys) {
  return loadMissingColumns(self.meta, self.columns, self.extents, keys)
}

async function loadMissingColumns(meta, columns, extents, keys) {
  await Promise.all(keys.map(async (key) => {
    const column = findColumn(meta, key)
    if (!column || columns[key]) return
    columns[key] = await loadColumn(column)
    extents[key] = findExtent(columns[key])
  }))
}

function findExtent(values) {
  let [low, high] = [Infinity, -Infinity]
  for (let i = 0; i < values.length; i += 1) {
    if (values[i] < low) low = values[i]
    if (values[i] > high) high = values[i]
  }
  return high >= low ? [low, high] : [0, 0]
}

async function recolor(self, key) {
  await loadColumns(self, [key])
  self.color = key
  recolorPoints(self)
  sendView(self)
  sendToGroup(self, { color: key })
}

// Compute the color of each point and draw the map.
function recolorPoints(self) {
  self.quantity = findColumn(self.meta, self.color)
  chooseColors(self)
  self.inks = computeInks(self.grid, self.columns[self.color], self.quantity)
  self.nColored = countColored(self.inks)
  fillLegend(self)
  self.draw()
  updateStatus(self)
}

// Choose the color scale for the quantity and the theme.
function chooseColors(self) {
  const { lut, darkLut, binaryColors } = self.meta
  self.dark = isDark(self.root)
  self.lut = self.quantity.binary ? binaryColors : self.dark ? darkLut : lut
  self.packed = packColors(self.lut)
}

// Compute which points pass the filters and are inside the lasso. `linked` are slots from another map of the group.
async function updateSelection(self, { quiet = false, linked = null } = {}) {
  self.linked = linked
  await loadColumns(self, Object.keys(self.filters))
  self.chosen = computeMask(self.grid, self.columns, self.filters, self.polygon)
  if (self.linked) filterBySlots(self.grid, self.columns.slot, self.linked, self.chosen)
  self.count = countSelected(self.chosen)
  self.draw()
  updateStatus(self)
  if (quiet) return
  sendSelection(self)
  shareSelection(self)
}

function drawAll(self) {
  const height = self.stageBox.clientHeight
  const over = fitCanvas(self.over, height)
  if (!over) return
  const moved = self.width !== over.width || self.height !== height
  Object.assign(self, { width: over.width, height })
  self.scales = makeScales(self, over.width, height)
  if (self.dark !== isDark(self.root)) { // the theme has changed
    chooseColors(self)
    fillLegend(self)
    self.stale = true
  }
  if (self.stale || moved) {
    const dense = self.dense
    drawPicture(self, fitCanvas(self.canvas, height))
    self.stale = false
    self.drawn += 1
    if (dense !== self.dense) updateStatus(self)
  }
  drawOverlay(self, over)
}

function drawOverlay(self, { ctx, width, height }) {
  const theme = readTheme(self.root)
  drawAxes(self, ctx, theme, width, height)
  drawLasso(self, ctx, theme, self.polygon, false)
  drawLasso(self, ctx, theme, self.lasso, true)
  drawLargePoints(self, ctx, theme)
  self.mark.paths.forEach((path) => drawPath(self, ctx, theme, path))
  for (const place of self.mark.neighbors || []) drawRing(self, ctx, theme, place, 1.2, 6)
  for (const place of self.mark.outliers || []) drawRing(self, ctx, theme, place, 2.2, 8)
  drawNames(self, ctx, theme)
  drawRing(self, ctx, theme, self.mark.selectedPoint, 3)
  drawRing(self, ctx, { ...theme, text: theme.primary }, self.mark.suggestedPoint, 3, 15)
  if (self.otherMapHover >= 0) drawRing(self, ctx, theme, [self.x[self.otherMapHover], self.y[self.otherMapHover]], 1.5)
  if (self.hover >= 0) drawRing(self, ctx, theme, [self.x[self.hover], self.y[self.hover]], 1.5)
}

// The names of the paths, if there are several.
function drawNames(self, ctx, theme) {
  if (self.mark.paths.length < 2) return
  ctx.font = `600 12px ${theme.font}`
  ctx.textAlign = "left"
  ctx.textBaseline = "middle"
  self.mark.paths.forEach(({ label, color }, row) => {
    const y = self.height - 34 - 18 * (self.mark.paths.length - 1 - row)
    dot(ctx, theme, 34, y, 5, color)
    haloText(ctx, theme, label, 46, y, theme.text)
  })
}

// The text of the tooltip: the memory id and all quantities that are loaded.
function describePoint(self, i) {
  const loaded = self.meta.columns.filter(({ key }) => self.columns[key] && key !== "slot")
  const format = ({ words }, v) => (Number.isNaN(v) ? "–" : words ? words[v] : formatNumber(v))
  return [`memory ${self.columns.slot[i]}`, ...loaded.map((column) => `${column.name}  ${format(column, self.columns[column.key][i])}`)].join("\n")
}

function hoverOver(self, px, py) {
  const point = pickPoint(self.grid, self.chosen, self.scales, px, py, PICK_RADIUS)
  if (point !== self.hover) {
    self.hover = point
    self.drawOver()
    sendToGroup(self, { hover: point < 0 ? null : self.columns.slot[point] })
  }
  const { tip } = self
  tip.hidden = point < 0
  if (self.tool === "pan") self.over.style.cursor = point < 0 ? "grab" : "pointer"
  if (point < 0) return
  const write = () => {
    tip.textContent = describePoint(self, point)
    tip.style.left = `${px > self.width / 2 ? px - tip.offsetWidth - 14 : px + 14}px`
    tip.style.top = `${Math.max(4, Math.min(py + 12, self.height - tip.offsetHeight - 4))}px`
  }
  write()
  loadColumns(self, self.meta.columns.map((each) => each.key)).then(() => self.hover === point && write())
}

function selectPoint(self, i) {
  const t = self.mark.paths[0]?.points.findIndex((place) => place && place[0] === self.x[i] && place[1] === self.y[i]) ?? -1
  if (self.mark.pathMovesPlayer) { // a map on the replay page: a click on the path moves the cursor of the player
    if (t >= 0) window.dispatchEvent(new CustomEvent("emtc-seek", { detail: { t } }))
    return
  }
  self.mark = { ...self.mark, selected: self.columns.slot[i], selectedPoint: [self.x[i], self.y[i]], suggestedPoint: null, outliers: [], paths: [] }
  self.drawOver()
  dispatch(self, "pick", { slot: self.columns.slot[i] })
}

function dispatch(self, what, detail) {
  window.dispatchEvent(new CustomEvent(`emtc-${what}`, { detail: { channel: self.meta.channel, ...detail } }))
}

function sendView(self) {
  clearTimeout(self.viewTimer)
  self.viewTimer = setTimeout(() => {
    const { x, y, span, whole } = self.view
    const camera = whole ? "" : [x, y, span].map((v) => +v.toPrecision(7)).join(",")
    dispatch(self, "view", { color: self.color, camera })
  }, QUIET_MS)
}

function sendSelection(self) {
  clearTimeout(self.selectionTimer)
  self.selectionTimer = setTimeout(() => {
    const polygon = (self.polygon || []).map((at) => at.join(",")).join(";")
    const filters = Object.entries(self.filters).map(([key, ends]) => [key, ...ends].join(":")).join(";")
    dispatch(self, "select", { polygon, filters })
  }, 60)
}

// Send a change to the other maps of the group.
function sendToGroup(self, change) {
  const { channel, group, run, kind } = self.meta
  if (group) window.dispatchEvent(new CustomEvent("emtc-together", { detail: { channel, group, run, kind, ...change } }))
}

// Send the selected slots, for maps of the same run, and the filters, for maps of other runs.
function shareSelection(self) {
  if (!self.meta.group) return
  const whole = self.polygon === null && !Object.keys(self.filters).length
  sendToGroup(self, { filters: { ...self.filters }, slots: whole ? null : makeSlotMask(self.grid, self.columns.slot, self.chosen) })
}

// Apply a change of another map of the group, as far as it is meaningful for this map.
function applyShared(self, { run, kind, view, color, hover, filters, slots }) {
  const same = run === self.meta.run
  if (view && same && kind === self.meta.kind) {
    self.view = { ...view }
    self.draw()
  }
  if (hover !== undefined) {
    self.otherMapHover = same && hover !== null ? self.columns.slot.indexOf(hover) : -1
    self.drawOver()
  }
  if (filters) {
    self.polygon = null
    self.filters = same ? {} : { ...filters }
    updateSelection(self, { quiet: true, linked: same ? slots : null })
  }
  if (color) {
    loadColumns(self, [color]).then(() => {
      self.color = color
      recolorPoints(self)
      fillControls(self)
    })
  }
}

function onCameraMove(self) {
  self.view.whole = false
  self.draw()
  sendView(self)
  sendToGroup(self, { view: self.view })
}

function zoomAt(self, factor, px, py) {
  const { view, scales } = self
  const [ux, uy] = [scales.ux(px), scales.uy(py)]
  const span = Math.max(scales.whole / 4000, Math.min(scales.whole * 2, view.span / factor))
  view.x = ux - (ux - view.x) * (span / view.span)
  view.y = uy - (uy - view.y) * (span / view.span)
  view.span = span
  onCameraMove(self)
}

function reset(self) {
  self.view = null
  self.scales = makeScales(self, self.width, self.height)
  self.draw()
  sendView(self)
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
      self.polygon = thinPolygon(lasso, MAX_CORNERS)
      updateSelection(self)
    } else if (!drag.moved) {
      const point = pickPoint(self.grid, self.chosen, self.scales, ...place(event), PICK_RADIUS)
      if (point >= 0) selectPoint(self, point)
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
    onCameraMove(self)
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
    onCameraMove(self)
  } else if (event.key === "+" || event.key === "=") zoomAt(self, 1.3, self.width / 2, self.height / 2)
  else if (event.key === "-") zoomAt(self, 1 / 1.3, self.width / 2, self.height / 2)
  else if (event.key === "0") reset(self)
  else if (event.key === "s") selectView(self)
  else if (event.key === "Escape") clearSelection(self)
  else if (event.key === "n" || event.key === "p") {
    const at = self.columns.slot.indexOf(self.mark.selected)
    const next = at < 0 ? 0 : (at + (event.key === "n" ? 1 : -1) + self.x.length) % self.x.length
    if (self.x.length) selectPoint(self, next)
  } else return
  event.preventDefault()
  event.stopPropagation()
}
