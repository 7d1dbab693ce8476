// An episode on the field, with its lines under the same time cursor. Everything runs in the browser:
// the data come once, and moving the cursor asks nothing of the server.

const LINES = { left: 62, right: 14, top: 34, bottom: 40, each: 92 }
const SMALL_LINES = { ...LINES, top: 25, bottom: 36, each: 30 } // in half a page
const NARROW = 700
const FIELD_MAX = { wide: 460, narrow: 170 }

export default function playback({ data, parentElement }) {
  const root = parentElement.querySelector(".playback")
  const self = root.state || (root.state = create(root))
  self.observer.observe(root)
  const { meta, arrays } = unpack(data)
  if (meta.key !== self.meta?.key) {
    self.frame = Math.min(meta.start, meta.frames - 1)
    self.playing = false
  }
  self.meta = meta
  self.arrays = arrays
  self.panels = meta.panels.map((panel) => ({
    ...panel,
    lines: panel.lines.map((line) => ({ ...line, x: arrays.t, y: arrays[line.array] })),
  }))
  root.setAttribute("aria-label", meta.alt)
  self.slider.max = String(meta.frames - 1)
  self.note.textContent = self.note.title = meta.note
  legend(self)
  self.show()
  return () => {
    self.observer.disconnect()
    cancelAnimationFrame(self.tick)
    self.playing = false
  }
}

function create(root) {
  const find = (name) => root.querySelector(name)
  const self = {
    frame: 0, playing: false, speed: 8, hidden: new Set(), hover: null,
    field: find(".field"), lines: find(".lines"), slider: find(".scrub"), note: find(".note"),
    clock: find(".clock"), key: find(".key"), play: find(".play"), tip: find(".tip"), root,
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
    self.before = performance.now()
    cancelAnimationFrame(self.tick)
    if (on) self.tick = requestAnimationFrame((now) => advance(self, now))
    self.show()
  }
  listen(self, find)
  return self
}

function advance(self, now) {
  if (!self.playing) return
  self.frame = Math.min(self.meta.frames - 1, self.frame + ((now - self.before) / 1000) * self.speed)
  self.before = now
  if (self.frame >= self.meta.frames - 1) self.playing = false
  self.show()
  if (self.playing) self.tick = requestAnimationFrame((next) => advance(self, next))
}

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
  const scrub = (event) => {
    const box = self.boxes?.[0]?.box
    if (!box) return
    const x = event.clientX - self.lines.getBoundingClientRect().left
    stop(Math.round(((x - box.x) / box.width) * (self.meta.frames - 1)))
  }
  self.lines.addEventListener("pointerdown", (event) => {
    self.lines.setPointerCapture(event.pointerId)
    self.scrubbing = true
    scrub(event)
  })
  self.lines.addEventListener("pointermove", (event) => self.scrubbing && scrub(event))
  self.lines.addEventListener("pointerup", () => { self.scrubbing = false })
  self.field.addEventListener("pointermove", (event) => hover(self, event))
  self.field.addEventListener("pointerleave", () => { self.tip.hidden = true })
}

function show(self) {
  const theme = themeOf(self.root)
  drawField(self, theme)
  drawLines(self, theme)
  const t = Math.floor(self.frame)
  self.slider.value = String(t)
  self.slider.setAttribute("aria-valuetext", `step ${t} of ${self.meta.frames - 1}`)
  self.play.textContent = self.playing ? "❚❚ Pause" : "▶ Play"
  self.play.setAttribute("aria-pressed", String(self.playing))
  self.clock.textContent = `t = ${t} / ${self.meta.frames - 1}`
  self.root.dataset.frame = String(t)
  if (t !== self.announced) {
    self.announced = t
    window.dispatchEvent(new CustomEvent("emtc-cursor", { detail: { t } }))
  }
}

function fieldScale(self, width) {
  const [x0, y0, x1, y1] = self.meta.bounds
  const most = self.root.clientWidth < NARROW ? FIELD_MAX.narrow : FIELD_MAX.wide
  const scale = Math.min(width / (x1 - x0), most / (y1 - y0))
  const offset = (width - (x1 - x0) * scale) / 2
  const height = (y1 - y0) * scale
  return { scale, height, sx: (x) => offset + (x - x0) * scale, sy: (y) => height - (y - y0) * scale }
}

// Position of unit u between the frames around the cursor; a unit that dies does not slide.
function placeOf(self, u) {
  const { position, alive } = self.arrays
  const units = self.meta.units
  const t = Math.floor(self.frame)
  const next = Math.min(t + 1, self.meta.frames - 1)
  const part = alive[next * units + u] ? self.frame - t : 0
  const at = (frame, axis) => position[(frame * units + u) * 2 + axis]
  return [0, 1].map((axis) => at(t, axis) * (1 - part) + at(next, axis) * part)
}

function drawField(self, theme) {
  const width = Math.floor(self.field.clientWidth)
  if (width < 40) return
  const view = fieldScale(self, width)
  const { ctx } = fitCanvas(self.field, view.height)
  const [x0, y0, x1, y1] = self.meta.bounds
  ctx.fillStyle = theme.raised
  ctx.beginPath()
  ctx.rect(view.sx(x0), 0, view.sx(x1) - view.sx(x0), view.height)
  ctx.clip()
  ctx.fill()
  drawCells(self, ctx, view, theme)
  drawMarkings(self, ctx, view, theme)
  self.view = view
  drawTargets(self, ctx, view)
  for (let u = 0; u < self.meta.units; u += 1) drawUnit(self, ctx, view, theme, u)
  if (!self.meta.bars) return
  for (let u = 0; u < self.meta.units; u += 1) drawBars(self, ctx, view, theme, u)
}

function drawCells(self, ctx, view, theme) {
  const { walkable } = self.arrays
  if (!walkable) return
  const [columns, rows] = self.meta.cells
  ctx.fillStyle = theme.faint
  for (let x = 0; x < columns; x += 1) {
    for (let y = 0; y < rows; y += 1) {
      if (walkable[x * rows + y]) continue
      const [left, top] = [Math.floor(view.sx(x)), Math.floor(view.sy(y + 1))]
      ctx.fillRect(left, top, Math.floor(view.sx(x + 1)) - left, Math.floor(view.sy(y)) - top)
    }
  }
}

// Lines painted on the field, as segments x0, y0, x1, y1.
function drawMarkings(self, ctx, view, theme) {
  const { markings } = self.arrays
  if (!markings) return
  ctx.strokeStyle = theme.soft
  ctx.lineWidth = 1.5
  ctx.beginPath()
  for (let i = 0; i < markings.length; i += 4) {
    ctx.moveTo(view.sx(markings[i]), view.sy(markings[i + 1]))
    ctx.lineTo(view.sx(markings[i + 2]), view.sy(markings[i + 3]))
  }
  ctx.stroke()
}

function drawTargets(self, ctx, view) {
  const { target, alive } = self.arrays
  if (!target) return
  const t = Math.floor(self.frame)
  for (let u = 0; u < self.meta.units; u += 1) {
    const aim = target[t * self.meta.units + u]
    if (aim < 0 || !alive[t * self.meta.units + u]) continue
    const from = placeOf(self, u)
    const to = placeOf(self, aim)
    ctx.strokeStyle = self.meta.teams[self.meta.team[u]].color
    ctx.globalAlpha = 0.55
    ctx.lineWidth = 1.5
    ctx.setLineDash([5, 4])
    ctx.beginPath()
    ctx.moveTo(view.sx(from[0]), view.sy(from[1]))
    ctx.lineTo(view.sx(to[0]), view.sy(to[1]))
    ctx.stroke()
    ctx.setLineDash([])
    ctx.globalAlpha = 1
  }
}

// Agents are circles, opponents squares, neutral things small rings: the shape says what the colour says.
function outline(ctx, team, x, y, r) {
  ctx.beginPath()
  if (team === 1) ctx.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8)
  else ctx.arc(x, y, r, 0, 7)
}

function drawUnit(self, ctx, view, theme, u) {
  const { alive } = self.arrays
  const i = Math.floor(self.frame) * self.meta.units + u
  const [px, py] = placeOf(self, u)
  const [x, y] = [view.sx(px), view.sy(py)]
  const team = self.meta.team[u]
  const r = radiusOf(self, view, u)
  if (!alive[i]) {
    ctx.strokeStyle = self.meta.teams[team].color
    ctx.globalAlpha = 0.45
    ctx.lineWidth = 2
    ctx.beginPath()
    ctx.moveTo(x - r * 0.6, y - r * 0.6)
    ctx.lineTo(x + r * 0.6, y + r * 0.6)
    ctx.moveTo(x + r * 0.6, y - r * 0.6)
    ctx.lineTo(x - r * 0.6, y + r * 0.6)
    ctx.stroke()
    ctx.globalAlpha = 1
    return
  }
  outline(ctx, team, x, y, r)
  ctx.fillStyle = self.meta.teams[team].color
  ctx.fill()
  ctx.strokeStyle = theme.background
  ctx.lineWidth = 1.5
  ctx.stroke()
  if (team === 2) return
  ctx.fillStyle = "#ffffff"
  ctx.font = `600 ${Math.max(9, Math.min(13, r))}px ${theme.font}`
  ctx.textAlign = "center"
  ctx.textBaseline = "middle"
  ctx.fillText(self.meta.labels[u], x, y + 0.5)
}

function radiusOf(self, view, u) {
  return Math.max(self.meta.team[u] === 2 ? 4 : 8, self.arrays.radius[u] * view.scale)
}

// Health under the unit, shield below it, above every body so that a crowd stays readable.
function drawBars(self, ctx, view, theme, u) {
  const { health, shield, alive } = self.arrays
  const i = Math.floor(self.frame) * self.meta.units + u
  if (!alive[i] || self.meta.team[u] === 2) return
  const [px, py] = placeOf(self, u)
  const r = radiusOf(self, view, u)
  const bar = Math.max(18, 1.9 * r)
  const box = { x: view.sx(px) - bar / 2, y: view.sy(py) - r - 6, width: bar }
  drawBar(ctx, theme, box, health[i], theme.text)
  if (shield[i] > 0) drawBar(ctx, theme, { ...box, y: box.y - 5 }, shield[i], theme.primary)
}

function drawBar(ctx, theme, box, part, color) {
  ctx.fillStyle = theme.background
  ctx.fillRect(box.x - 1, box.y - 1, box.width + 2, 5)
  ctx.fillStyle = theme.faint
  ctx.fillRect(box.x, box.y, box.width, 3)
  ctx.fillStyle = color
  ctx.fillRect(box.x, box.y, box.width * Math.max(0, Math.min(1, part)), 3)
}

function drawLines(self, theme) {
  const { panels } = self
  const { left, right, top, bottom, each } = self.root.clientWidth < NARROW ? SMALL_LINES : LINES
  const height = panels.length * (each + top) + bottom
  self.lines.hidden = !panels.length
  if (!panels.length) return
  const fit = fitCanvas(self.lines, height)
  if (!fit) return
  const view = [0, Math.max(1, self.meta.frames - 1)]
  self.boxes = panels.map((panel, row) => {
    const box = {
      x: left, y: top + row * (each + top),
      width: fit.width - left - right, height: each,
    }
    drawPanelTitle(fit.ctx, box, panel, theme, self.hidden)
    return { box, panel, ...drawPanel(fit.ctx, box, panel, view, theme, self.hidden, { xTicks: row === panels.length - 1 }) }
  })
  const last = self.boxes[self.boxes.length - 1].box
  fit.ctx.font = `12px ${theme.font}`
  fit.ctx.fillStyle = theme.soft
  fit.ctx.textAlign = "center"
  fit.ctx.fillText("t, step of the episode", last.x + last.width / 2, last.y + last.height + 34)
  drawCursor(self, fit.ctx, theme, last)
}

function drawCursor(self, ctx, theme, last) {
  const x = self.boxes[0].sx(self.frame)
  ctx.strokeStyle = theme.text
  ctx.lineWidth = 1.5
  ctx.beginPath()
  ctx.moveTo(x, self.boxes[0].box.y - 6)
  ctx.lineTo(x, last.y + last.height)
  ctx.stroke()
  const t = Math.min(Math.floor(self.frame), self.meta.frames - 2)
  for (const { panel, box, sx, sy } of self.boxes) {
    const texts = []
    for (const line of panel.lines) {
      const value = line.y[t]
      if (!finite(value)) continue
      ctx.fillStyle = line.color
      ctx.beginPath()
      ctx.arc(sx(line.x[t]), sy(value), 4, 0, 7)
      ctx.fill()
      texts.push(formatNumber(value))
    }
    ctx.font = `600 12px ${theme.font}`
    ctx.fillStyle = theme.text
    ctx.textAlign = "right"
    ctx.textBaseline = "alphabetic"
    ctx.fillText(texts.length ? `at t = ${t}: ${texts.join(", ")}` : `at t = ${t}: –`, box.x + box.width, box.y - 12)
  }
}

function hover(self, event) {
  if (!self.view) return
  const frame = self.field.getBoundingClientRect()
  const mouse = [event.clientX - frame.left, event.clientY - frame.top]
  const t = Math.floor(self.frame)
  let found = -1
  for (let u = 0; u < self.meta.units; u += 1) {
    const [x, y] = placeOf(self, u)
    if (Math.hypot(self.view.sx(x) - mouse[0], self.view.sy(y) - mouse[1]) < 14) found = u
  }
  self.tip.hidden = found < 0
  if (found < 0) return
  const i = t * self.meta.units + found
  const team = self.meta.teams[self.meta.team[found]].name
  const percent = (value) => `${Math.round(value * 100)} %`
  const parts = [`${team} ${self.meta.labels[found]}, ${self.meta.kind[found]}`]
  if (self.meta.team[found] !== 2) {
    parts.push(self.arrays.alive[i] ? `health ${percent(self.arrays.health[i])}` : "dead")
    if (self.arrays.shield[i] > 0) parts.push(`shield ${percent(self.arrays.shield[i])}`)
  }
  self.tip.textContent = parts.join(" · ")
  self.tip.style.left = `${Math.min(mouse[0] + 14, frame.width - self.tip.offsetWidth - 8)}px`
  self.tip.style.top = `${mouse[1] + 14}px`
}

function legend(self) {
  self.key.replaceChildren()
  const used = new Set(self.meta.team)
  self.meta.teams.forEach((team, number) => {
    if (!used.has(number)) return
    const item = document.createElement("span")
    const mark = document.createElement("span")
    mark.className = number === 1 ? "mark square" : "mark"
    mark.style.background = team.color
    item.append(mark, team.name)
    self.key.append(item)
  })
}
