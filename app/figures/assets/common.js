// Functions shared by the canvas components, after line_marker.js: theme colors, ticks, panels, and reading of packed arrays.
// Text from data is drawn on a canvas or set as textContent, never as HTML.

const MAX_BAND_OPACITY = 0.2 // as in app/figures/kinds/chart.py

function readTheme(element) {
  const style = getComputedStyle(element)
  const value = (name, fallback) => style.getPropertyValue(name).trim() || fallback
  const text = value("--st-text-color", "#1f2430")
  return {
    text,
    background: value("--st-background-color", "#ffffff"),
    raised: value("--st-secondary-background-color", "#f4f5f7"),
    faint: `color-mix(in srgb, ${text} 14%, transparent)`,
    soft: `color-mix(in srgb, ${text} 62%, transparent)`,
    primary: value("--st-primary-color", "#0072B2"),
    font: value("--st-font", "sans-serif"),
  }
}

// Whether the element is drawn in the dark theme.
function isDark(element) {
  return getComputedStyle(element).colorScheme.includes("dark")
}

// Set up a canvas with one unit per CSS pixel and full screen resolution. Returns null while it has no width.
function fitCanvas(canvas, height) {
  const width = Math.floor(canvas.clientWidth)
  if (width < 40) return null
  const ratio = window.devicePixelRatio || 1
  canvas.style.height = `${height}px`
  canvas.width = Math.round(width * ratio)
  canvas.height = Math.round(height * ratio)
  const ctx = canvas.getContext("2d")
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
  ctx.clearRect(0, 0, width, height)
  return { ctx, width, height, ratio }
}

// Layout of the bytes: uint32 header length, JSON header padded to 4 bytes, then the arrays.
const ARRAY_TYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array }
function unpack(bytes) {
  const buffer = bytes.slice().buffer
  const length = new DataView(buffer).getUint32(0, true)
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)))
  const arrays = {}
  for (const { name, dtype, offset, size } of header.arrays) {
    arrays[name] = new ARRAY_TYPES[dtype](buffer, 4 + length + offset, size)
  }
  return { meta: header.meta, arrays }
}

function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–"
  if (value < 0) return `−${formatNumber(-value)}`
  const size = value
  if (size === 0) return "0"
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`
  if (size >= 1e-3) return `${+value.toPrecision(4)}`
  return value.toExponential(1)
}

// Replace the end of a text by "…" if it is wider than `width` in the current font of `ctx`.
function shortenText(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text
  let length = text.length - 1
  while (length > 1 && ctx.measureText(`${text.slice(0, length)}…`).width > width) length -= 1
  return `${text.slice(0, length)}…`
}

// Divide a text between its words into lines that are not wider than `width` in the current font of `ctx`.
function wrapText(ctx, text, width) {
  const lines = []
  for (const word of text.split(" ").filter(Boolean)) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word
    if (lines.length && ctx.measureText(longer).width <= width) lines[lines.length - 1] = longer
    else lines.push(word)
  }
  return lines
}

function niceTicks(low, high, count) {
  const span = high - low
  if (!(span > 0)) return [low]
  const raw = span / Math.max(1, count)
  const power = 10 ** Math.floor(Math.log10(raw))
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw) || 10 * power
  const first = Math.ceil(low / step - 1e-9)
  const n = Math.floor(high / step + 1e-9) - first + 1 // not a loop up to `high`: i + 1 = i above 2⁵³
  return Array.from({ length: Math.max(0, n) }, (_, i) => +((first + i) * step).toPrecision(12))
}

// Ticks at powers of ten. If there are few, also at 2 and 5 times these powers. If there is still only one: even steps.
function logTicks(low, high, count) {
  const ticks = (parts) => {
    const candidates = []
    for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
      for (const part of parts) candidates.push(+(part * 10 ** power).toPrecision(12))
    }
    return candidates.filter((tick) => tick >= low && tick <= high)
  }
  const decades = ticks([1])
  if (decades.length > count) return decades.filter((_, i) => i % Math.ceil(decades.length / count) === 0)
  const finer = decades.length * 3 <= count ? ticks([1, 2, 5]) : decades
  return finer.length > 1 ? finer : niceTicks(low, high, count)
}

// Make a linear or logarithmic scale from [low, high] to [from, to]. `scale.invert` is the inverse function.
function makeScale(low, high, from, to, log) {
  const [transform, inverse] = log ? [Math.log10, (v) => 10 ** v] : [(v) => v, (v) => v]
  const [start, span] = [transform(low), transform(high) - transform(low) || 1]
  const scale = (v) => from + ((transform(v) - start) / span) * (to - from)
  scale.invert = (at) => inverse(start + ((at - from) / (to - from || 1)) * span)
  return scale
}

// The smallest and largest finite value of the visible lines for x in [from, to], with a margin.
function findYRange(panel, from, to, hidden) {
  if (panel.range) return panel.range
  let low = Infinity
  let high = -Infinity
  for (const line of panel.lines) {
    if (isHidden(line, hidden)) continue
    const { x, y, lo, hi } = line
    for (let i = 0; i < x.length; i += 1) {
      if (x[i] < from || x[i] > to) continue
      for (const values of [y, lo, hi]) {
        const value = values ? values[i] : null
        if (!finite(value)) continue
        if (value < low) low = value
        if (value > high) high = value
      }
    }
  }
  if (low === Infinity) return panel.log ? [0.1, 1] : [0, 1]
  if (panel.log) {
    const pad = (high / low) ** 0.06 * (high === low ? 1.3 : 1)
    return [low / pad, high * pad]
  }
  if (panel.zero && low > 0) low = 0
  const pad = (high - low || Math.abs(high) || 1) * 0.06
  return [low === 0 && panel.zero ? 0 : low - pad, high + pad]
}

function finite(value) {
  return value !== null && value !== undefined && !Number.isNaN(value)
}

// Whether a legend entry belongs to this line, or to the main line of this seed's line.
function isNamed(line, name) {
  return Boolean(name) && (line.name === name || line.group === name)
}

function isHidden(line, hidden) {
  return hidden.has(line.name) || hidden.has(line.group)
}

// Draw one panel of lines into `box` {x, y, width, height}; returns the two scales.
function drawPanel(ctx, box, panel, view, theme, hidden, options) {
  const [low, high] = findYRange(panel, view[0], view[1], hidden)
  const sx = makeScale(view[0], view[1], box.x, box.x + box.width, options.xLog)
  const sy = makeScale(low, high, box.y + box.height, box.y, panel.log)
  const [xTicks, yTicks] = [options.xLog ? logTicks : niceTicks, panel.log ? logTicks : niceTicks]
  ctx.save()
  ctx.font = `12px ${theme.font}`
  ctx.lineWidth = 1
  for (const tick of yTicks(low, high, Math.max(2, box.height / 34))) {
    ctx.strokeStyle = theme.faint
    ctx.beginPath()
    ctx.moveTo(box.x, Math.round(sy(tick)) + 0.5)
    ctx.lineTo(box.x + box.width, Math.round(sy(tick)) + 0.5)
    ctx.stroke()
    ctx.fillStyle = theme.soft
    ctx.textAlign = "right"
    ctx.textBaseline = "middle"
    ctx.fillText(formatNumber(tick), box.x - 8, sy(tick))
  }
  for (const tick of xTicks(view[0], view[1], Math.max(3, box.width / 90))) {
    ctx.strokeStyle = theme.faint
    ctx.beginPath()
    ctx.moveTo(Math.round(sx(tick)) + 0.5, box.y)
    ctx.lineTo(Math.round(sx(tick)) + 0.5, box.y + box.height)
    ctx.stroke()
    if (options.xTicks) {
      ctx.fillStyle = theme.soft
      ctx.textAlign = "center"
      ctx.textBaseline = "top"
      ctx.fillText(formatNumber(tick), sx(tick), box.y + box.height + 7)
    }
  }
  ctx.beginPath()
  const edge = options.isZoomed ? 0 : 4 // the markers at both ends of a whole line are drawn whole
  ctx.rect(box.x - edge, box.y - 4, box.width + 2 * edge, box.height + 8)
  ctx.clip()
  const visible = panel.lines.filter((line) => !isHidden(line, hidden))
  const isStrong = (line) => isNamed(line, options.highlight?.name)
  const others = visible.some(isStrong) ? options.highlight.others : 1 // opacity of the lines that are not highlighted
  drawBands(ctx, visible, sx, sy, { isStrong, others, isOnlyStrong: options.bands === "pointed" })
  const main = visible.filter((line) => !line.faint)
  const spaced = visible.map((line) => ({ ...line, markerShift: main.indexOf(line) / Math.max(1, main.length) }))
  const dashedLast = (a, b) => Boolean(a.dash) - Boolean(b.dash) // dashed lines last, because a line below them stays visible
  for (const line of spaced.toSorted(dashedLast)) if (!isStrong(line)) drawLine(ctx, line, sx, sy, others)
  for (const line of spaced) if (isStrong(line)) drawLine(ctx, { ...line, width: (line.width ?? 2) * (line.faint ? 1 : 1.4) }, sx, sy)
  ctx.restore()
  return { sx, sy, low, high }
}

// Draw the bands of all lines, or with `isOnlyStrong` only that of the highlighted line.
function drawBands(ctx, lines, sx, sy, { isStrong, others, isOnlyStrong }) {
  const banded = lines.filter((line) => line.lo && line.hi)
  const opacity = Math.min(MAX_BAND_OPACITY, 0.6 / Math.max(1, banded.length)) // as Panel.band_opacity
  for (const line of banded) {
    if (isStrong(line)) drawBand(ctx, line, sx, sy, MAX_BAND_OPACITY)
    else if (!isOnlyStrong) drawBand(ctx, line, sx, sy, others < 1 ? 0.03 : opacity)
  }
}

function drawBand(ctx, line, sx, sy, opacity) {
  const { x, lo, hi } = line
  ctx.globalAlpha = opacity
  ctx.fillStyle = line.color
  ctx.beginPath()
  let started = false
  for (let i = 0; i < x.length; i += 1) {
    if (!finite(hi[i])) continue
    if (started) ctx.lineTo(sx(x[i]), sy(hi[i]))
    else ctx.moveTo(sx(x[i]), sy(hi[i]))
    started = true
  }
  for (let i = x.length - 1; i >= 0; i -= 1) if (finite(lo[i])) ctx.lineTo(sx(x[i]), sy(lo[i]))
  ctx.fill()
  ctx.globalAlpha = 1
}

function drawLine(ctx, line, sx, sy, opacity = 1) {
  const { x, y } = line
  ctx.globalAlpha = (line.faint ? 0.4 : 1) * opacity
  ctx.strokeStyle = line.color
  ctx.fillStyle = line.color
  ctx.lineWidth = line.width || 2
  ctx.lineJoin = "round"
  ctx.setLineDash(line.dash || [])
  ctx.beginPath()
  let pen = false
  let run = 0
  for (let i = 0; i < x.length; i += 1) {
    if (!finite(y[i])) {
      pen = false
      continue
    }
    if (pen) ctx.lineTo(sx(x[i]), sy(y[i]))
    else ctx.moveTo(sx(x[i]), sy(y[i]))
    pen = true
    run += 1
  }
  if (line.width !== 0) ctx.stroke() // a width of 0 draws points only
  ctx.setLineDash([])
  drawLinePoints(ctx, line, sx, sy, run)
  ctx.globalAlpha = 1
}

// Draw a marker at every point of a short line. On a long line with a marker, draw one every 48 pixels. The first one is
// shifted by the fraction `markerShift` of this distance, which differs between lines: so each of several lines at 0 is
// visible.
function drawLinePoints(ctx, { x, y, markers, faint, marker, markerShift = 0 }, sx, sy, run) {
  const few = run <= 40 && !faint
  if (!markers && !few && !marker) return
  const apart = marker && !markers && !few ? 48 : marker && !markers ? 34 : 0
  let last = sx(x[0]) - (few ? 1 : 1 - markerShift) * apart - 0.5
  for (let i = 0; i < x.length; i += 1) {
    if (!finite(y[i]) || sx(x[i]) - last < apart) continue
    last = sx(x[i])
    drawMarker(ctx, marker, last, sy(y[i]), marker ? 4.5 : run > 40 ? 2 : 2.8)
  }
}

const LEGEND_ROW = 20

function nameScale(panel) {
  return panel.log ? `${panel.unit}, log scale` : panel.unit
}

// Compute the positions of the legend entries: in the row of the title as long as they fit, then in new rows.
// The title of a panel with `isTitled` = false is on the page, so that only its unit is drawn.
function layOutLegend(ctx, panel, theme, width) {
  ctx.save()
  ctx.font = `600 13px ${theme.font}`
  let at = panel.isTitled === false ? 0 : ctx.measureText(panel.title).width + 6
  ctx.font = `12px ${theme.font}`
  if (panel.unit) at += ctx.measureText(`[${nameScale(panel)}]`).width
  at += 18
  let row = 0
  const items = []
  for (const line of panel.lines) {
    const label = line.label || line.name
    if (line.name === panel.title || label === panel.title || line.faint) continue
    const wide = Math.min(width, 28 + ctx.measureText(line.name).width)
    if (at + wide > width && at > 0) {
      row += 1
      at = 0
    }
    items.push({ line, at, row, width: wide })
    at += wide + 14
  }
  ctx.restore()
  return { items, rows: row + 1 }
}

// Draw "Title [unit]" at the left, then the legend entries. Returns the boxes in which a click hits an entry.
function drawPanelTitle(ctx, box, panel, theme, hidden, legendLayout = layOutLegend(ctx, panel, theme, box.width)) {
  const top = box.y - 12 - (legendLayout.rows - 1) * LEGEND_ROW
  ctx.save()
  ctx.textBaseline = "alphabetic"
  ctx.textAlign = "left"
  ctx.font = `600 13px ${theme.font}`
  ctx.fillStyle = theme.text
  const scale = panel.unit ? `[${nameScale(panel)}]` : ""
  const title = panel.isTitled === false ? "" : shortenText(ctx, panel.title, box.width - ctx.measureText(scale).width - 6)
  ctx.fillText(title, box.x, top)
  const wide = title ? ctx.measureText(title).width + 6 : 0
  ctx.font = `12px ${theme.font}`
  ctx.fillStyle = theme.soft
  ctx.fillText(scale, box.x + wide, top)
  const hits = []
  for (const { line, at, row, width } of legendLayout.items) {
    const x = box.x + at
    const y = top + row * LEGEND_ROW
    ctx.globalAlpha = hidden.has(line.name) ? 0.35 : 1
    ctx.strokeStyle = line.color
    ctx.fillStyle = line.color
    ctx.lineWidth = 3
    ctx.setLineDash(line.dash || [])
    ctx.beginPath()
    ctx.moveTo(x, y - 4)
    ctx.lineTo(x + 20, y - 4)
    ctx.stroke()
    ctx.setLineDash([])
    if (line.marker) drawMarker(ctx, line.marker, x + 10, y - 4, 4.5)
    ctx.fillStyle = theme.soft
    ctx.fillText(line.name, x + 26, y, width - 26)
    ctx.globalAlpha = 1
    hits.push({ name: line.name, x, y: y - 15, width, height: LEGEND_ROW })
  }
  ctx.restore()
  return hits
}

// Index of the x that is nearest to the value (x ascending), or -1 if x is empty.
function nearestIndex(x, value) {
  let low = 0
  let high = x.length - 1
  if (high < 0) return -1
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (x[middle] <= value) low = middle
    else high = middle
  }
  return Math.abs(x[high] - value) < Math.abs(x[low] - value) ? high : low
}

const TIP_REACH = 12 // pixels by which the cursor may be outside the x range of a line whose value is shown

// Index of the line's point to show at x: the nearest one, or -1 if x is outside the line's range.
function indexAt({ x: xs }, x, sx) {
  const index = nearestIndex(xs, x)
  if (index < 0) return -1
  const isInside = x >= xs[0] && x <= xs[xs.length - 1]
  return isInside || Math.abs(sx(xs[index]) - sx(x)) <= TIP_REACH ? index : -1
}
