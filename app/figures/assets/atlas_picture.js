// Drawing of a map: a density image if many points are in view, otherwise round points. Paths, rings and
// the lasso are drawn on a second canvas, so that a moving pointer does not redraw the points.
// "Ink" is an index into the color scale, 0 … 254.

const DENSITY_FROM = 60000 // points in view
const MAX_DISKS = 20000 // colored points that are drawn as disks above a density image
const PAD = 26
const GREY = [140, 146, 154]

function makeScales(self, width, height) {
  const { grid } = self
  const spanX = (grid.x1 - grid.x0) * 1.04
  const spanY = (grid.y1 - grid.y0) * 1.04
  const w = width - 2 * PAD
  const h = height - 2 * PAD
  const fit = Math.min(w / spanX, h / spanY) // the same scale on both axes
  if (!self.view) self.view = { x: (grid.x0 + grid.x1) / 2, y: (grid.y0 + grid.y1) / 2, span: width / fit, whole: true }
  if (self.view.whole) self.view.span = width / fit
  const { x, y, span } = self.view
  const kx = width / span
  const ky = kx // pixels per unit of both axes
  return {
    kx, ky, zoom: kx / fit, whole: width / fit,
    sx: (v) => width / 2 + (v - x) * kx,
    sy: (v) => height / 2 - (v - y) * ky,
    ux: (p) => (p - width / 2) / kx + x,
    uy: (p) => (height / 2 - p) / ky + y,
  }
}

function drawPicture(self, fit) {
  const { grid, scales } = self
  const rows = findBucketRows(grid, scales.ux(-9), scales.ux(fit.width + 9), scales.uy(fit.height + 9), scales.uy(-9))
  const inView = rows.reduce((sum, [from, to]) => sum + to - from, 0)
  self.dense = inView > DENSITY_FROM
  if (self.dense) drawDensity(self, fit, rows)
  else drawPoints(self, fit, rows, inView)
}

// Draw the number of points per pixel as opacity and the mean of their values as color. Points that are not selected
// are gray. One cell is one CSS pixel, so that the image is not thinner on screens with a high resolution. If the
// quantity has a value without effect and the other points are few, they are drawn as disks above the image. Many
// disks would take longer than a frame, and the image already shows them.
function drawDensity(self, fit, rows) {
  const { grid, inks, chosen, view, scales } = self
  const width = Math.floor(fit.width)
  const height = Math.floor(fit.height)
  const image = new ImageData(width, height)
  const pixels = new Uint32Array(image.data.buffer)
  const counts = new Uint16Array(width * height)
  const sums = new Float32Array(width * height)
  const ground = new Uint8Array(width * height)
  const [kx, ky] = [scales.kx, scales.ky]
  const [ox, oy] = [width / 2 - view.x * kx, height / 2 + view.y * ky]
  const { x, y } = grid
  let nColored = 0
  for (const [from, to] of rows) {
    for (let k = from; k < to; k += 1) {
      const px = (x[k] * kx + ox) | 0
      const py = (oy - y[k] * ky) | 0
      if (px < 0 || py < 0 || px >= width || py >= height) continue
      const at = py * width + px
      if (chosen[k] && inks[k] !== NO_INK) {
        nColored += 1
        if (counts[at] < 65535) {
          counts[at] += 1
          sums[at] += inks[k]
        }
      } else if (ground[at] < 255) ground[at] += 1
    }
  }
  const colors = self.packed
  const grey = packColor(GREY)
  for (let at = 0; at < pixels.length; at += 1) {
    if (counts[at]) pixels[at] = colors[(sums[at] / counts[at] + 0.5) | 0] | (DENSITY_ALPHA[Math.min(counts[at], 255)] << 24)
    else if (ground[at]) pixels[at] = grey | ((DENSITY_ALPHA[ground[at]] >> 1) << 24)
  }
  self.stage = self.stage || document.createElement("canvas")
  self.stage.width = width
  self.stage.height = height
  self.stage.getContext("2d").putImageData(image, 0, 0)
  fit.ctx.imageSmoothingEnabled = false
  fit.ctx.drawImage(self.stage, 0, 0, fit.width, fit.height)
  if (self.quantity.noEffect === null || nColored > MAX_DISKS) return
  const disks = fit.ctx.getImageData(0, 0, self.canvas.width, self.canvas.height)
  stampColored(self, disks, fit.ratio, rows, makeStamp(1.6 * fit.ratio))
  fit.ctx.putImageData(disks, 0, 0)
}

const DENSITY_ALPHA = Uint8Array.from({ length: 256 }, (_, count) => (count ? Math.min(255, 130 + 31 * Math.log2(count)) : 0))

function packColor([red, green, blue]) {
  return red | (green << 8) | (blue << 16)
}

function packColors(lut) {
  const colors = lut.map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)))
  return Uint32Array.from({ length: N_INKS }, (_, ink) => packColor(colors[Math.round((ink / (N_INKS - 1)) * (colors.length - 1))]))
}

// Make a disk with soft edges, as a list of [dx, dy, coverage] in pixels.
function makeStamp(radius) {
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

// Gray points are drawn first, so that they do not hide others. If the quantity has a value without effect, gray points
// are smaller and colored points larger.
function drawPoints(self, fit, rows, inView) {
  const { ratio, ctx } = fit
  const image = ctx.createImageData(self.canvas.width, self.canvas.height)
  const base = inView > 40000 ? 1 : inView > 8000 ? 1.6 : 2.6
  const radius = base * ratio * Math.min(2.2, Math.sqrt(Math.max(1, self.scales.zoom)))
  const { grid, inks, chosen } = self
  const hasNoEffect = self.quantity.noEffect !== null
  const grey = packColor(GREY)
  const small = makeStamp(hasNoEffect ? 0.7 * radius : radius)
  for (const [from, to] of rows) {
    for (let k = from; k < to; k += 1) {
      if (chosen[k] && inks[k] !== NO_INK) continue
      const [px, py] = findPixel(self, k, ratio)
      stampPoint(image, small, px, py, grey, chosen[k] && !hasNoEffect ? 1 : 0.35)
    }
  }
  stampColored(self, image, ratio, rows, makeStamp(hasNoEffect ? 1.4 * radius : radius))
  ctx.putImageData(image, 0, 0)
}

function stampColored(self, image, ratio, rows, stamp) {
  const { inks, chosen, packed } = self
  for (const [from, to] of rows) {
    for (let k = from; k < to; k += 1) {
      if (!chosen[k] || inks[k] === NO_INK) continue
      const [px, py] = findPixel(self, k, ratio)
      stampPoint(image, stamp, px, py, packed[inks[k]], 1)
    }
  }
}

function findPixel({ grid, scales }, k, ratio) {
  return [Math.round(scales.sx(grid.x[k]) * ratio), Math.round(scales.sy(grid.y[k]) * ratio)]
}

function stampPoint({ data, width, height }, stamp, px, py, color, strength) {
  if (!(px > -9 && py > -9 && px < width + 9 && py < height + 9)) return
  for (const [dx, dy, part] of stamp) {
    const qx = px + dx
    const qy = py + dy
    if (qx < 0 || qy < 0 || qx >= width || qy >= height) continue
    const at = (qy * width + qx) * 4
    const cover = part * strength
    const keep = (data[at + 3] / 255) * (1 - cover)
    const alpha = cover + keep
    data[at] = ((color & 255) * cover + data[at] * keep) / alpha
    data[at + 1] = (((color >> 8) & 255) * cover + data[at + 1] * keep) / alpha
    data[at + 2] = (((color >> 16) & 255) * cover + data[at + 2] * keep) / alpha
    data[at + 3] = alpha * 255
  }
}

function drawAxes(self, ctx, theme, width, height) {
  ctx.strokeStyle = theme.faint
  ctx.strokeRect(0.5, 0.5, width - 1, height - 1)
  ctx.font = `12px ${theme.font}`
  ctx.textAlign = "center"
  ctx.textBaseline = "bottom"
  haloText(ctx, theme, self.meta.xLabel, width / 2, height - 6)
  ctx.save()
  ctx.translate(8, height / 2)
  ctx.rotate(-Math.PI / 2)
  ctx.textBaseline = "top"
  haloText(ctx, theme, self.meta.yLabel, 0, 0)
  ctx.restore()
}

// Draw the path of an episode. `points` has one point per step, null if the node is not on the map. The width of the
// line shows the gate β. Labels: every tenth step, and the steps with the largest errors.
function drawPath(self, ctx, theme, { points, beta, delta_mem, jumps, color }) {
  const { sx, sy } = self.scales
  if (!points.some(Boolean)) return
  const ink = color || theme.text
  ctx.lineJoin = ctx.lineCap = "round"
  for (const [style, extra] of [[theme.background, 2.8], [ink, 0]]) {
    ctx.strokeStyle = style
    for (let t = 1; t < points.length; t += 1) {
      if (!points[t] || !points[t - 1]) continue
      ctx.lineWidth = 0.8 + 2.4 * (beta?.[t - 1] ?? 0.5) + extra
      ctx.beginPath()
      ctx.moveTo(sx(points[t - 1][0]), sy(points[t - 1][1]))
      ctx.lineTo(sx(points[t][0]), sy(points[t][1]))
      ctx.stroke()
    }
  }
  const named = new Set()
  points.forEach((place, t) => {
    if (place && t % self.mark.stepsPerMark === 0) dot(ctx, theme, sx(place[0]), sy(place[1]), 4, ink)
  })
  for (const t of jumps) {
    if (!points[t]) continue
    named.add(t)
    dot(ctx, theme, sx(points[t][0]), sy(points[t][1]), 4, ink)
    write(`t ${t}, Δ_mem ${formatNumber(delta_mem[t])}`, points[t])
  }
  points.forEach((place, t) => {
    if (place && t % self.mark.stepsPerMark === 0 && !named.has(t)) write(`t ${t}`, place)
  })
  if (self.playerStep === null) return
  let t = Math.min(self.playerStep, points.length - 1)
  while (t > 0 && !points[t]) t -= 1
  if (points[t]) dot(ctx, theme, sx(points[t][0]), sy(points[t][1]), 7, theme.primary)

  function write(text, place) {
    ctx.font = `600 11px ${theme.font}`
    const room = sx(place[0]) + 10 + ctx.measureText(text).width < self.width
    ctx.textAlign = room ? "left" : "right"
    ctx.textBaseline = "alphabetic"
    haloText(ctx, theme, text, sx(place[0]) + (room ? 7 : -7), sy(place[1]) - 5, theme.text)
  }
}

function haloText(ctx, theme, text, x, y, color) {
  ctx.lineWidth = 3
  ctx.strokeStyle = theme.background
  ctx.strokeText(text, x, y)
  ctx.fillStyle = color || theme.soft
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

const MAX_LARGE_POINTS = 300

// If few points are selected, draw them large above the others, so that they are visible.
function drawLargePoints(self, ctx, theme) {
  if (!self.count || self.count > MAX_LARGE_POINTS || self.count === self.grid.n) return
  const { grid, chosen, inks, lut, scales } = self
  for (let k = 0; k < chosen.length; k += 1) {
    if (!chosen[k]) continue
    const color = inks[k] === NO_INK ? theme.soft : lut[Math.round((inks[k] / (N_INKS - 1)) * (lut.length - 1))]
    const [x, y] = [scales.sx(grid.x[k]), scales.sy(grid.y[k])]
    dot(ctx, theme, x, y, 5, color)
    ctx.beginPath()
    ctx.arc(x, y, 6, 0, 7)
    ctx.lineWidth = 1
    ctx.strokeStyle = theme.text
    ctx.stroke()
  }
}

function drawRing(self, ctx, theme, place, width, radius = 9) {
  if (!place) return
  const [x, y] = [self.scales.sx(place[0]), self.scales.sy(place[1])]
  ctx.beginPath()
  ctx.arc(x, y, radius, 0, 7)
  ctx.lineWidth = width + 3
  ctx.strokeStyle = theme.background
  ctx.stroke()
  ctx.lineWidth = width
  ctx.strokeStyle = theme.text
  ctx.stroke()
}

function drawLasso(self, ctx, theme, polygon, open) {
  if (!polygon || polygon.length < 2) return
  ctx.beginPath()
  polygon.forEach(([x, y], at) => ctx[at ? "lineTo" : "moveTo"](self.scales.sx(x), self.scales.sy(y)))
  if (!open) ctx.closePath()
  for (const [style, width] of [[theme.background, 3.5], [theme.primary, 1.6]]) {
    ctx.strokeStyle = style
    ctx.lineWidth = width
    ctx.setLineDash(style === theme.primary ? [6, 4] : [])
    ctx.stroke()
  }
  ctx.setLineDash([])
}
