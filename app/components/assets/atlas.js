// The memory as a cloud of points: raw float32 in, one click out. Pan, zoom, selection and trace stay in the
// browser; the selected point and its trace arrive as events from the small component beside it (marker.js),
// so that a click never sends the cloud again.

const HEIGHT = 560
const PAD = 26
const NOTHING = { selected: null, at: null, trace: [] }

export default function atlas({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".atlas")
  const self = root.state || (root.state = create(root))
  self.observer.observe(root)
  self.send = setTriggerValue
  const { meta, arrays } = unpack(data)
  const moved = meta.viewKey !== self.meta?.viewKey
  Object.assign(self, { meta, ...arrays })
  if (moved) self.view = null
  self.places = new Map()
  self.slot.forEach((slot, i) => self.places.set(slot, i))
  self.paint = paintOf(self)
  self.grid = gridOf(self)
  root.setAttribute("aria-label", meta.alt)
  self.mark = (window.emtcMarks || {})[meta.channel] || NOTHING
  self.draw()
  root.dataset.ready = String(meta.n)
  return () => self.observer.disconnect()
}

function create(root) {
  const self = { view: null, hover: -1, head: null, mark: NOTHING, root }
  self.canvas = root.querySelector("canvas")
  self.tip = root.querySelector(".tip")
  self.draw = () => {
    cancelAnimationFrame(self.next)
    self.next = requestAnimationFrame(() => self.meta && draw(self))
  }
  self.observer = new ResizeObserver(self.draw)
  heed(self, "emtc-mark", (detail) => {
    if (!self.meta || detail.channel !== self.meta.channel) return
    self.mark = detail
    self.draw()
  })
  heed(self, "emtc-cursor", (detail) => {
    self.head = detail.t
    if (self.mark.trace.length) self.draw()
  })
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

// One packed colour per point, from the scale sent along; a missing value is grey.
function paintOf(self) {
  const { lut, low, high } = self.meta
  const colors = lut.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)))
  const paint = new Uint8Array(self.value.length * 3)
  const grey = [140, 146, 154]
  for (let i = 0; i < self.value.length; i += 1) {
    const v = self.value[i]
    const part = high > low ? (v - low) / (high - low) : 0.5
    const color = Number.isNaN(v) ? grey : colors[Math.max(0, Math.min(colors.length - 1, Math.round(part * (colors.length - 1))))]
    paint.set(color, i * 3)
  }
  return paint
}

// Points bucketed by place, so that a click looks at a few of them only.
function gridOf(self) {
  const { x, y } = self
  const bounds = { x0: Infinity, x1: -Infinity, y0: Infinity, y1: -Infinity }
  for (let i = 0; i < x.length; i += 1) {
    bounds.x0 = Math.min(bounds.x0, x[i])
    bounds.x1 = Math.max(bounds.x1, x[i])
    bounds.y0 = Math.min(bounds.y0, y[i])
    bounds.y1 = Math.max(bounds.y1, y[i])
  }
  if (!x.length) Object.assign(bounds, { x0: 0, x1: 1, y0: 0, y1: 1 })
  if (bounds.x0 === bounds.x1) Object.assign(bounds, { x0: bounds.x0 - 1, x1: bounds.x1 + 1 })
  if (bounds.y0 === bounds.y1) Object.assign(bounds, { y0: bounds.y0 - 1, y1: bounds.y1 + 1 })
  const side = Math.max(1, Math.min(1024, Math.round(Math.sqrt(x.length / 4))))
  const cell = (i) => {
    const cx = Math.min(side - 1, Math.floor(((x[i] - bounds.x0) / (bounds.x1 - bounds.x0)) * side))
    const cy = Math.min(side - 1, Math.floor(((y[i] - bounds.y0) / (bounds.y1 - bounds.y0)) * side))
    return cy * side + cx
  }
  const starts = new Int32Array(side * side + 1)
  for (let i = 0; i < x.length; i += 1) starts[cell(i) + 1] += 1
  for (let c = 0; c < side * side; c += 1) starts[c + 1] += starts[c]
  const fill = starts.slice()
  const order = new Int32Array(x.length)
  for (let i = 0; i < x.length; i += 1) order[fill[cell(i)]++] = i
  return { ...bounds, side, starts, order }
}

function scalesOf(self, width) {
  const { grid } = self
  const spanX = (grid.x1 - grid.x0) * 1.04
  const spanY = (grid.y1 - grid.y0) * 1.04
  const w = width - 2 * PAD
  const h = HEIGHT - 2 * PAD
  if (!self.view) self.view = { x: (grid.x0 + grid.x1) / 2, y: (grid.y0 + grid.y1) / 2, zoom: 1 }
  const kx = self.meta.equal ? Math.min(w / spanX, h / spanY) : w / spanX
  const ky = self.meta.equal ? kx : h / spanY
  const { x, y, zoom } = self.view
  return {
    kx: kx * zoom, ky: ky * zoom,
    sx: (v) => width / 2 + (v - x) * kx * zoom,
    sy: (v) => HEIGHT / 2 - (v - y) * ky * zoom,
    ux: (p) => (p - width / 2) / (kx * zoom) + x,
    uy: (p) => (HEIGHT / 2 - p) / (ky * zoom) + y,
  }
}

function draw(self) {
  const fit = fitCanvas(self.canvas, HEIGHT)
  if (!fit) return
  const theme = themeOf(self.root)
  self.width = fit.width
  self.scales = scalesOf(self, fit.width)
  drawPoints(self, fit)
  drawAxes(self, fit.ctx, theme, fit.width)
  drawScale(self, fit.ctx, theme)
  drawTrace(self, fit.ctx, theme)
  drawRing(self, fit.ctx, theme, self.mark.at, 3)
  if (self.hover >= 0) drawRing(self, fit.ctx, theme, [self.x[self.hover], self.y[self.hover]], 1.5)
}

// A small round stamp with soft edges, written straight into the pixels.
function stampOf(radius) {
  const reach = Math.ceil(radius)
  const stamp = []
  for (let dy = -reach; dy <= reach; dy += 1) {
    for (let dx = -reach; dx <= reach; dx += 1) {
      const cover = Math.max(0, Math.min(1, radius + 0.5 - Math.hypot(dx, dy)))
      if (cover > 0) stamp.push([dx, dy, cover])
    }
  }
  return stamp
}

function drawPoints(self, fit) {
  const { ratio, ctx } = fit
  const width = self.canvas.width
  const height = self.canvas.height
  const image = ctx.createImageData(width, height)
  const pixels = image.data
  const base = self.meta.n > 200000 ? 0.6 : self.meta.n > 40000 ? 1 : self.meta.n > 8000 ? 1.6 : 2.6
  const stamp = stampOf(base * ratio * Math.min(2.2, Math.sqrt(self.view.zoom)))
  const { sx, sy } = self.scales
  for (let i = 0; i < self.x.length; i += 1) {
    const px = Math.round(sx(self.x[i]) * ratio)
    const py = Math.round(sy(self.y[i]) * ratio)
    if (!(px > -9 && py > -9 && px < width + 9 && py < height + 9)) continue
    for (const [dx, dy, cover] of stamp) {
      const qx = px + dx
      const qy = py + dy
      if (qx < 0 || qy < 0 || qx >= width || qy >= height) continue
      const at = (qy * width + qx) * 4
      const under = pixels[at + 3] / 255
      const keep = under * (1 - cover)
      const alpha = cover + keep
      for (let c = 0; c < 3; c += 1) {
        pixels[at + c] = (self.paint[i * 3 + c] * cover + pixels[at + c] * keep) / alpha
      }
      pixels[at + 3] = alpha * 255
    }
  }
  ctx.putImageData(image, 0, 0)
}

function drawAxes(self, ctx, theme, width) {
  ctx.strokeStyle = theme.faint
  ctx.strokeRect(0.5, 0.5, width - 1, HEIGHT - 1)
  ctx.font = `12px ${theme.font}`
  ctx.fillStyle = theme.soft
  ctx.textAlign = "center"
  ctx.textBaseline = "bottom"
  ctx.fillText(self.meta.xLabel, width / 2, HEIGHT - 6)
  ctx.save()
  ctx.translate(8, HEIGHT / 2)
  ctx.rotate(-Math.PI / 2)
  ctx.textBaseline = "top"
  ctx.fillText(self.meta.yLabel, 0, 0)
  ctx.restore()
}

// A point in words: its id and every quantity that came along, at least the coloured one.
function describe(self, i) {
  const { fields, valueName } = self.meta
  const known = fields.length ? fields.map(({ name, array }) => [name, self[array][i]]) : [[valueName, self.value[i]]]
  return [`memory ${self.slot[i]}`, ...known.map(([name, v]) => `${name}  ${Number.isNaN(v) ? "–" : formatNumber(v)}`)].join("\n")
}

// What the colours mean: a strip with both ends, or two named dots.
function drawScale(self, ctx, theme) {
  const { lut, low, high, valueLabel, binary } = self.meta
  ctx.font = `600 12px ${theme.font}`
  const width = Math.max(150, ctx.measureText(valueLabel).width) + 20
  ctx.globalAlpha = 0.88
  ctx.fillStyle = theme.background
  ctx.fillRect(10, 10, width, 58)
  ctx.globalAlpha = 1
  ctx.fillStyle = theme.text
  ctx.textAlign = "left"
  ctx.textBaseline = "alphabetic"
  ctx.fillText(valueLabel, 20, 28)
  ctx.font = `12px ${theme.font}`
  if (binary) {
    dot(ctx, theme, 26, 46, 5, lut[0])
    dot(ctx, theme, 86, 46, 5, lut[1])
    ctx.fillStyle = theme.soft
    ctx.textAlign = "left"
    ctx.textBaseline = "middle"
    ctx.fillText("no", 36, 46)
    ctx.fillText("yes", 96, 46)
    return
  }
  const strip = width - 20
  lut.forEach((color, i) => {
    ctx.fillStyle = color
    ctx.fillRect(20 + (strip * i) / lut.length, 35, strip / lut.length + 0.5, 9)
  })
  ctx.fillStyle = theme.soft
  ctx.textBaseline = "top"
  ctx.fillText(formatNumber(low), 20, 49)
  ctx.textAlign = "right"
  ctx.fillText(formatNumber(high), 20 + strip, 49)
}

// The path of the episode over the cloud: one place per step, null where its node is gone.
function drawTrace(self, ctx, theme) {
  const { sx, sy } = self.scales
  const { trace } = self.mark
  if (!trace.some(Boolean)) return
  ctx.lineJoin = "round"
  ctx.beginPath()
  let pen = false
  for (const place of trace) {
    if (!place) continue
    if (pen) ctx.lineTo(sx(place[0]), sy(place[1]))
    else ctx.moveTo(sx(place[0]), sy(place[1]))
    pen = true
  }
  ctx.strokeStyle = theme.background
  ctx.lineWidth = 4.5
  ctx.stroke()
  ctx.strokeStyle = theme.text
  ctx.lineWidth = 1.8
  ctx.stroke()
  trace.forEach((place, t) => {
    if (!place || t % 10) return
    dot(ctx, theme, sx(place[0]), sy(place[1]), 4, theme.text)
    haloText(ctx, theme, `t ${t}`, sx(place[0]) + 7, sy(place[1]) - 5)
  })
  if (self.head === null) return
  let t = Math.min(self.head, trace.length - 1)
  while (t > 0 && !trace[t]) t -= 1
  if (trace[t]) dot(ctx, theme, sx(trace[t][0]), sy(trace[t][1]), 6, theme.primary)
}

function haloText(ctx, theme, text, x, y) {
  ctx.font = `600 11px ${theme.font}`
  ctx.textAlign = "left"
  ctx.textBaseline = "alphabetic"
  ctx.lineWidth = 3
  ctx.strokeStyle = theme.background
  ctx.strokeText(text, x, y)
  ctx.fillStyle = theme.text
  ctx.fillText(text, x, y)
}

function dot(ctx, theme, x, y, r, color) {
  ctx.beginPath()
  ctx.arc(x, y, r, 0, 7)
  ctx.fillStyle = color
  ctx.fill()
  ctx.lineWidth = 1.5
  ctx.strokeStyle = theme.background
  ctx.stroke()
}

function drawRing(self, ctx, theme, place, width) {
  if (!place) return
  const [x, y] = [self.scales.sx(place[0]), self.scales.sy(place[1])]
  ctx.beginPath()
  ctx.arc(x, y, 9, 0, 7)
  ctx.lineWidth = width + 3
  ctx.strokeStyle = theme.background
  ctx.stroke()
  ctx.lineWidth = width
  ctx.strokeStyle = theme.text
  ctx.stroke()
}

// The nearest point within 14 px, or -1.
function pick(self, px, py) {
  const { grid, scales } = self
  const reach = 14
  const cellX = (v) => Math.max(0, Math.min(grid.side - 1, Math.floor(((v - grid.x0) / (grid.x1 - grid.x0)) * grid.side)))
  const cellY = (v) => Math.max(0, Math.min(grid.side - 1, Math.floor(((v - grid.y0) / (grid.y1 - grid.y0)) * grid.side)))
  let best = reach
  let found = -1
  for (let cy = cellY(scales.uy(py + reach)); cy <= cellY(scales.uy(py - reach)); cy += 1) {
    for (let cx = cellX(scales.ux(px - reach)); cx <= cellX(scales.ux(px + reach)); cx += 1) {
      const c = cy * grid.side + cx
      for (let at = grid.starts[c]; at < grid.starts[c + 1]; at += 1) {
        const i = grid.order[at]
        const away = Math.hypot(scales.sx(self.x[i]) - px, scales.sy(self.y[i]) - py)
        if (away < best) {
          best = away
          found = i
        }
      }
    }
  }
  return found
}

function choose(self, i) {
  self.mark = { ...self.mark, selected: self.slot[i], at: [self.x[i], self.y[i]], trace: [] }
  self.draw()
  self.send("point", self.slot[i])
}

function zoomAt(self, factor, px, py) {
  const { view, scales } = self
  const [ux, uy] = [scales.ux(px), scales.uy(py)]
  const zoom = Math.max(0.5, Math.min(400, view.zoom * factor))
  view.x = ux - (ux - view.x) * (view.zoom / zoom)
  view.y = uy - (uy - view.y) * (view.zoom / zoom)
  view.zoom = zoom
  self.draw()
}

function listen(self) {
  const { canvas, root, tip } = self
  const place = (event) => {
    const frame = canvas.getBoundingClientRect()
    return [event.clientX - frame.left, event.clientY - frame.top]
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId)
    self.drag = { from: place(event), view: { ...self.view }, moved: false }
  })
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = place(event)
    if (self.drag) {
      const [dx, dy] = [px - self.drag.from[0], py - self.drag.from[1]]
      self.drag.moved ||= Math.hypot(dx, dy) > 4
      if (self.drag.moved) {
        self.view = { ...self.drag.view, x: self.drag.view.x - dx / self.scales.kx, y: self.drag.view.y + dy / self.scales.ky }
        tip.hidden = true
        self.draw()
      }
      return
    }
    const found = pick(self, px, py)
    if (found !== self.hover) {
      self.hover = found
      self.draw()
    }
    canvas.style.cursor = found < 0 ? "grab" : "pointer"
    tip.hidden = found < 0
    if (found < 0) return
    tip.textContent = describe(self, found)
    tip.style.left = `${px > self.width / 2 ? px - tip.offsetWidth - 14 : px + 14}px`
    tip.style.top = `${py + 12}px`
  })
  canvas.addEventListener("pointerup", (event) => {
    const { drag } = self
    self.drag = null
    if (!drag || drag.moved) return
    const found = pick(self, ...place(event))
    if (found >= 0) choose(self, found)
  })
  canvas.addEventListener("pointerleave", () => {
    self.hover = -1
    tip.hidden = true
    self.draw()
  })
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault()
    zoomAt(self, event.deltaY > 0 ? 1 / 1.18 : 1.18, ...place(event))
  }, { passive: false })
  canvas.addEventListener("dblclick", () => reset(self))
  root.querySelector(".in").addEventListener("click", () => zoomAt(self, 1.4, self.width / 2, HEIGHT / 2))
  root.querySelector(".out").addEventListener("click", () => zoomAt(self, 1 / 1.4, self.width / 2, HEIGHT / 2))
  root.querySelector(".all").addEventListener("click", () => reset(self))
  root.addEventListener("keydown", (event) => onKey(self, event))
}

function reset(self) {
  self.view = null
  self.draw()
}

function onKey(self, event) {
  const step = 40
  const pans = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }
  if (pans[event.key]) {
    self.view.x += pans[event.key][0] / self.scales.kx
    self.view.y += pans[event.key][1] / self.scales.ky
    self.draw()
  } else if (event.key === "+" || event.key === "=") zoomAt(self, 1.3, self.width / 2, HEIGHT / 2)
  else if (event.key === "-") zoomAt(self, 1 / 1.3, self.width / 2, HEIGHT / 2)
  else if (event.key === "0" || event.key === "Escape") reset(self)
  else if (event.key === "n" || event.key === "p") {
    const at = self.places.get(self.mark.selected)
    const next = at === undefined ? 0 : (at + (event.key === "n" ? 1 : -1) + self.x.length) % self.x.length
    if (self.x.length) choose(self, next)
  } else return
  event.preventDefault()
  event.stopPropagation()
}
