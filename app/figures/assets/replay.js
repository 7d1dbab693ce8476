// Player for one or two episodes on their fields, with charts of their values and a common time cursor. The data are
// sent once. Moving the cursor does not need the server.

const LINES = { left: 52, right: 12, top: 28, bottom: 36, panelHeight: 64 }
const SMALL_LINES = { ...LINES, top: 25, panelHeight: 34 } // for a narrow page
const NARROW = 700 // largest width of a narrow player [px]
const MIN_COLUMN_WIDTH = { wide: 260, narrow: 210 } // [px]
const MAX_COLUMNS = 3

export default function playback({ data, parentElement }) {
  const root = parentElement.querySelector(".playback")
  const self = root.state || (root.state = create(root))
  self.observer.observe(root)
  const { meta, arrays } = unpack(data)
  if (meta.key !== self.meta?.key) {
    self.frame = Math.min(meta.start, meta.frames - 1)
    self.playing = false
    self.linesKey = null
    self.meta = meta
    self.sides = meta.sides.map((side, number) => ({ ...side, hovered: -1, arrays: selectArrays(arrays, number) }))
    self.panels = meta.panels.map((panel) => ({
      ...panel,
      // lines have no legend entries: the titles and the teams above have the same dashes and colors
      lines: panel.lines.map((line) => ({ ...line, label: panel.title, side: Math.max(0, meta.names.indexOf(line.group)) })),
    }))
    buildSides(self)
  }
  root.setAttribute("aria-label", meta.alt)
  self.slider.max = String(meta.frames - 1)
  self.show()
  return () => {
    self.observer.disconnect()
    cancelAnimationFrame(self.animation)
    self.playing = false
  }
}

// The arrays of a side, whose names start with its number.
function selectArrays(arrays, number) {
  const selected = {}
  for (const [name, values] of Object.entries(arrays)) {
    if (name.startsWith(`${number}-`)) selected[name.slice(2)] = values
  }
  return selected
}

function create(root) {
  const find = (name) => root.querySelector(name)
  const self = {
    frame: 0, playing: false, speed: 8, hidden: new Set(), drawn: 0, root,
    stages: find(".stages"), lines: find(".lines"), cursor: find(".cursor"), actionKey: find(".actions"),
    slider: find(".scrub"), clock: find(".clock"), play: find(".play"),
  }
  self.show = () => show(self)
  self.observer = new ResizeObserver(() => self.meta && self.show())
  self.go = (frame) => {
    self.frame = Math.max(0, Math.min(self.meta.frames - 1, frame))
    self.show()
  }
  self.toggle = (on = !self.playing) => {
    if (on && self.frame >= self.meta.frames - 1) self.frame = 0
    self.playing = on
    self.lastTime = performance.now()
    cancelAnimationFrame(self.animation)
    if (on) self.animation = requestAnimationFrame((now) => advance(self, now))
    self.show()
  }
  listen(self, find)
  return self
}

// Make the elements of each side (episode): the title, the field and the legend.
function buildSides(self) {
  const make = (tag, className, parent) => {
    const element = document.createElement(tag)
    element.className = className
    parent.append(element)
    return element
  }
  const isPair = self.sides.length > 1
  self.root.classList.toggle("pair", isPair)
  self.stages.replaceChildren()
  self.sides.forEach((side, number) => {
    const box = make("section", "side", self.stages)
    const name = make("div", "name", box)
    name.hidden = !isPair
    make("b", "", name).textContent = self.meta.names[number]
    make("i", number ? "dash dashed" : "dash", name)
    make("span", "title", name).textContent = side.title
    name.title = side.title
    side.ended = make("span", "ended", name)
    const stage = make("div", "stage", box)
    side.field = make("canvas", "field", stage)
    side.field.setAttribute("role", "img")
    side.field.setAttribute("aria-label", side.title || "The field")
    side.tip = make("div", "tip", stage)
    side.tip.hidden = true
    const under = make("div", "under", box)
    const legend = make("span", "key", under)
    for (const team of side.legend) {
      legend.append(makeKeyItem(team.is_square ? "mark square" : "mark", team.color, team.name))
    }
    const note = make("span", "note", under)
    note.textContent = side.units ? side.note : "" // without a field, the page shows the reason above the player
    side.field.addEventListener("pointermove", (event) => hover(self, side, event))
    side.field.addEventListener("pointerleave", () => {
      side.tip.hidden = true
      side.hovered = -1
      self.show()
    })
  })
  const actionItems = self.meta.action_groups.map(([group, color]) => makeKeyItem("mark square", color, group))
  self.actionKey.replaceChildren(...actionItems)
}

function makeKeyItem(className, color, text) {
  const item = document.createElement("span")
  const mark = document.createElement("span")
  mark.className = className
  mark.style.background = color
  item.append(mark, text)
  return item
}

// Move the cursor by the time since the last picture, and request the next picture.
function advance(self, now) {
  if (!self.playing) return
  self.frame = Math.min(self.meta.frames - 1, self.frame + (Math.max(0, now - self.lastTime) / 1000) * self.speed)
  self.lastTime = now
  if (self.frame >= self.meta.frames - 1) self.playing = false
  self.show()
  if (self.playing) self.animation = requestAnimationFrame((next) => advance(self, next))
}

// Connect the buttons, the slider, the keys and the pointer.
function listen(self, find) {
  const stop = (frame) => {
    self.playing = false
    self.go(frame)
  }
  const actions = {
    ".first": () => stop(0),
    ".back": () => stop(Math.ceil(self.frame) - 1),
    ".play": () => self.toggle(),
    ".forward": () => stop(Math.floor(self.frame) + 1),
    ".last": () => stop(self.meta.frames - 1),
  }
  for (const [name, act] of Object.entries(actions)) find(name).addEventListener("click", act)
  self.slider.addEventListener("input", () => stop(Number(self.slider.value)))
  const seek = ({ detail }) => {
    if (!self.root.isConnected) window.removeEventListener("emtc-seek", seek)
    else stop(detail.t)
  }
  window.addEventListener("emtc-seek", seek)
  find(".speed").addEventListener("change", (event) => { self.speed = Number(event.target.value) })
  self.root.addEventListener("keydown", (event) => {
    if (event.target.matches("select, input") && event.key !== " ") return
    const keys = {
      " ": ".play", k: ".play", ArrowLeft: ".back", ",": ".back", ArrowRight: ".forward", ".": ".forward",
      Home: ".first", End: ".last",
    }
    if (!keys[event.key] || (event.key === " " && event.target.matches("button"))) return
    event.preventDefault()
    event.stopPropagation()
    actions[keys[event.key]]()
  })
  // Show the frame at the pointer. The boxes are in reading order, so the first one that ends after the pointer has it.
  const scrub = (event) => {
    const bounds = self.lines.getBoundingClientRect()
    const x = event.clientX - bounds.left
    const y = event.clientY - bounds.top
    const boxes = (self.boxes || []).map(({ box }) => box)
    const box = boxes.find((panelBox) => x < panelBox.x + panelBox.width + 20 && y < panelBox.y + panelBox.height + 40)
    if (box) stop(Math.round(((x - box.x) / box.width) * (self.meta.frames - 1)))
  }
  self.lines.addEventListener("pointerdown", (event) => {
    self.lines.setPointerCapture(event.pointerId)
    self.scrubbing = true
    scrub(event)
  })
  self.lines.addEventListener("pointermove", (event) => self.scrubbing && scrub(event))
  self.lines.addEventListener("pointerup", () => { self.scrubbing = false })
}

// Draw everything at the present frame, and send the step to other components of the page.
function show(self) {
  const theme = readTheme(self.root)
  const isPair = self.sides.length > 1
  const room = Number(self.root.dataset.room) || 0 // height for the field on a page with only the player [px]
  const layout = isPair ? "pair" : self.root.clientWidth < NARROW ? "narrow" : "wide"
  const maxHeight = Math.max(room, MAX_FIELD_HEIGHT[layout])
  for (const side of self.sides) {
    const frame = clampFrame(side, self.frame)
    drawSide(side, frame, theme, maxHeight, self.meta)
    const hasEnded = isPair && self.frame >= side.frames - 1
    side.ended.textContent = hasEnded ? `ended at t = ${side.frames - 1}` : ""
  }
  drawLines(self, theme)
  const t = Math.floor(self.frame)
  self.slider.value = String(t)
  self.slider.setAttribute("aria-valuetext", `step ${t} of ${self.meta.frames - 1}`)
  self.play.textContent = self.playing ? "❚❚ Pause" : "▶ Play"
  self.play.setAttribute("aria-pressed", String(self.playing))
  self.clock.textContent = `t = ${t} / ${self.meta.frames - 1}`
  self.root.dataset.frame = String(t)
  self.drawn += 1
  if (t !== self.sentStep) {
    self.sentStep = window.emtcCursor = t
    window.dispatchEvent(new CustomEvent("emtc-cursor", { detail: { t } }))
  }
}

// Choose the sizes of the panels and the number of columns. All rows have the same number of panels if possible.
function layOutPanels(self) {
  const isNarrow = self.root.clientWidth < NARROW
  const maxColumns = Math.floor(self.lines.clientWidth / MIN_COLUMN_WIDTH[isNarrow ? "narrow" : "wide"])
  const rows = Math.ceil(self.panels.length / Math.max(1, Math.min(MAX_COLUMNS, maxColumns)))
  return { rows, columns: Math.ceil(self.panels.length / rows), size: isNarrow ? SMALL_LINES : LINES }
}

// Draw the panels. The lines are drawn once per size and theme, and the time cursor on another canvas above them.
function drawLines(self, theme) {
  const { panels } = self
  self.lines.hidden = self.cursor.hidden = !panels.length
  if (!panels.length) return
  const layout = layOutPanels(self)
  const height = layout.rows * (layout.size.panelHeight + layout.size.top) + layout.size.bottom
  const linesKey = [
    self.lines.clientWidth, height, layout.columns, window.devicePixelRatio, theme.text, theme.background,
  ].join()
  if (linesKey !== self.linesKey) {
    const canvas = fitCanvas(self.lines, height)
    if (!canvas) return
    self.linesKey = linesKey
    self.boxes = drawPanels(self, canvas, theme, layout)
  }
  const cursorCanvas = fitCanvas(self.cursor, height)
  if (cursorCanvas) drawCursor(self, cursorCanvas.ctx, theme)
}

// Draw all panels; return the box and the scales of each.
function drawPanels(self, { ctx, width }, theme, { columns, size: { left, right, top, panelHeight } }) {
  const xRange = [0, Math.max(1, self.meta.frames - 1)]
  const columnWidth = width / columns
  const boxes = self.panels.map((panel, index) => {
    const row = Math.floor(index / columns)
    const column = index % columns
    const box = {
      x: column * columnWidth + left, y: top + row * (panelHeight + top),
      width: columnWidth - left - right, height: panelHeight,
    }
    const isLowest = index + columns >= self.panels.length
    drawPanelTitle(ctx, box, panel, theme, self.hidden)
    if (panel.kind === "actions") {
      drawActions(ctx, box, self.sides, self.meta.names, xRange, theme)
      return { box, panel, ...drawTimeAxis(ctx, box, xRange, theme, isLowest) }
    }
    return { box, panel, ...drawPanel(ctx, box, panel, xRange, theme, self.hidden, { xTicks: isLowest }) }
  })
  ctx.font = `12px ${theme.font}`
  ctx.fillStyle = theme.soft
  ctx.textAlign = "center"
  ctx.textBaseline = "alphabetic"
  self.actionKey.hidden = columns > 1
  for (const { box, panel } of boxes.slice(-columns)) {
    if (columns > 1 && panel.kind === "actions") drawActionKey(self, ctx, box, theme) // the next panel names the x axis
    else ctx.fillText("t, step of the episode", box.x + box.width / 2, box.y + box.height + 33)
  }
  return boxes
}

// Draw the colors of the actions in the row of the x axis' name, from the right edge to the left.
function drawActionKey(self, ctx, box, theme) {
  ctx.save()
  ctx.textAlign = "right"
  let right = box.x + box.width
  for (const [group, color] of self.meta.action_groups.toReversed()) {
    ctx.fillStyle = theme.soft
    ctx.fillText(group, right, box.y + box.height + 33)
    right -= ctx.measureText(group).width + 14
    ctx.fillStyle = color
    ctx.fillRect(right, box.y + box.height + 24, 10, 10)
    right -= 12
  }
  ctx.restore()
}

// Draw only the time axis, for the panel of actions, which has no numeric y axis.
function drawTimeAxis(ctx, box, [first, last], theme, hasLabels) {
  const sx = (t) => box.x + ((t - first) / (last - first)) * box.width
  const ticks = hasLabels ? niceTicks(first, last, Math.max(3, box.width / 90)) : []
  ctx.save()
  ctx.font = `12px ${theme.font}`
  ctx.fillStyle = theme.soft
  ctx.textAlign = "center"
  ctx.textBaseline = "top"
  for (const tick of ticks) ctx.fillText(formatNumber(tick), sx(tick), box.y + box.height + 7)
  ctx.restore()
  return { sx, sy: () => box.y }
}

// Draw the time cursor of each panel, a dot on each line, and the values at the cursor.
function drawCursor(self, ctx, theme) {
  const isPair = self.sides.length > 1
  for (const { panel, box, sx, sy } of self.boxes) {
    const x = sx(self.frame)
    ctx.strokeStyle = theme.text
    ctx.lineWidth = 1.5
    ctx.beginPath()
    ctx.moveTo(x, box.y - 6)
    ctx.lineTo(x, box.y + box.height + (isPair ? 0 : 4))
    ctx.stroke()
    if (panel.kind === "actions") continue
    const valuesBySide = self.sides.map(() => [])
    for (const line of panel.lines) {
      const t = Math.min(Math.floor(self.frame), self.meta.frames - 2)
      const value = line.y[t]
      if (!finite(value)) continue
      ctx.fillStyle = line.color
      ctx.beginPath()
      ctx.arc(sx(line.x[t]), sy(value), 4, 0, 2 * Math.PI)
      ctx.fill()
      valuesBySide[line.side].push(formatNumber(value))
    }
    writeValues(self, ctx, theme, box, valuesBySide)
  }
}

// Write the values at the cursor above a panel, for each episode.
function writeValues(self, ctx, theme, box, valuesBySide) {
  const texts = valuesBySide.map((values, number) => `${self.meta.names[number]} ${values.join(", ") || "–"}`.trim())
  ctx.font = `600 12px ${theme.font}`
  ctx.fillStyle = theme.text
  ctx.textAlign = "right"
  ctx.textBaseline = "alphabetic"
  ctx.fillText(texts.join("   "), box.x + box.width, box.y - 12)
}

// Show the tooltip of what is under the pointer.
function hover(self, side, event) {
  const bounds = side.field.getBoundingClientRect()
  const pointer = { x: event.clientX - bounds.left, y: event.clientY - bounds.top }
  const hovered = side.units ? findUnit(side, clampFrame(side, self.frame), pointer, self.meta) : -1
  if (hovered !== side.hovered) {
    side.hovered = hovered
    if (!self.playing) self.show() // a playing replay is drawn anyway
  }
  const text = describeAt(side, clampFrame(side, self.frame), pointer, self.meta.teams)
  side.tip.hidden = !text
  if (!text) return
  side.tip.textContent = text
  side.tip.style.left = `${Math.max(0, Math.min(pointer.x + 14, bounds.width - side.tip.offsetWidth - 8))}px`
  side.tip.style.top = `${pointer.y + 14}px`
}
