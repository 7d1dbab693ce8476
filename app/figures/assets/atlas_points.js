// Data of a map: columns that are loaded once, buckets by coordinates, and the color, filter and lasso results for
// each point. This file does not draw. `i` is the index of a point in the server's order, `k` in the order of buckets.

const COLUMN_BYTES = 400e6 // cache size of this tab; the least recently used columns are removed first
const N_INKS = 255
const NO_INK = 255

// Load a column from its URL as a typed array, or from the cache.
function loadColumn({ url, dtype }) {
  const cache = (window.emtcColumns = window.emtcColumns || new Map())
  const cached = cache.get(url)
  cache.delete(url)
  const column = cached || fetchColumn(url, dtype)
  cache.set(url, column) // now the last entry, which means most recently used
  if (!cached) column.then(() => removeOldColumns(cache), () => cache.delete(url))
  return column
}

async function fetchColumn(url, dtype) {
  const response = await fetch(new URL(`.${url}`, window.location.href))
  if (!response.ok) throw new Error(`The data of the map could not be loaded (${response.status}). Reload the page.`)
  const column = new ARRAY_TYPES[dtype](await response.arrayBuffer())
  columnSizes.set(url, column.byteLength)
  return column
}

const columnSizes = new Map()
function removeOldColumns(cache) {
  let bytes = 0
  for (const url of cache.keys()) bytes += columnSizes.get(url) || 0
  for (const url of [...cache.keys()]) {
    if (bytes <= COLUMN_BYTES) return
    bytes -= columnSizes.get(url) || 0
    cache.delete(url)
  }
}

function findBounds(x, y) {
  let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity]
  for (let i = 0; i < x.length; i += 1) {
    if (x[i] < x0) x0 = x[i]
    if (x[i] > x1) x1 = x[i]
    if (y[i] < y0) y0 = y[i]
    if (y[i] > y1) y1 = y[i]
  }
  if (!(x1 >= x0)) [x0, x1, y0, y1] = [0, 1, 0, 1]
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1]
  if (y0 === y1) [y0, y1] = [y0 - 1, y1 + 1]
  return { x0, x1, y0, y1 }
}

// Sort the points into buckets by coordinates and copy them in this order, so that a small view reads little memory.
// Points without coordinates are left out.
function makeGrid(x, y) {
  const bounds = findBounds(x, y)
  const side = Math.max(1, Math.min(512, Math.round(Math.sqrt(x.length / 8))))
  const cells = new Int32Array(x.length)
  const starts = new Int32Array(side * side + 1)
  const fx = side / (bounds.x1 - bounds.x0)
  const fy = side / (bounds.y1 - bounds.y0)
  for (let i = 0; i < x.length; i += 1) {
    if (Number.isNaN(x[i]) || Number.isNaN(y[i])) {
      cells[i] = -1
      continue
    }
    const cx = Math.min(side - 1, ((x[i] - bounds.x0) * fx) | 0)
    const cy = Math.min(side - 1, ((y[i] - bounds.y0) * fy) | 0)
    cells[i] = cy * side + cx
    starts[cells[i] + 1] += 1
  }
  for (let c = 0; c < side * side; c += 1) starts[c + 1] += starts[c]
  const n = starts[side * side]
  const fill = starts.slice(0, -1)
  const grid = { ...bounds, side, starts, n, order: new Int32Array(n), x: new Float32Array(n), y: new Float32Array(n) }
  for (let i = 0; i < x.length; i += 1) {
    if (cells[i] < 0) continue
    const k = fill[cells[i]]++
    grid.order[k] = i
    grid.x[k] = x[i]
    grid.y[k] = y[i]
  }
  return grid
}

// Find the buckets that overlap a rectangle: one range [from, to) of points `k` per row of buckets.
function findBucketRows(grid, x0, x1, y0, y1) {
  const { side, starts } = grid
  const cell = (v, low, high) => Math.max(0, Math.min(side - 1, Math.floor(((v - low) / (high - low)) * side)))
  const [left, right] = [cell(x0, grid.x0, grid.x1), cell(x1, grid.x0, grid.x1)]
  const rows = []
  if (x1 < grid.x0 || x0 > grid.x1 || y1 < grid.y0 || y0 > grid.y1) return rows
  for (let cy = cell(y0, grid.y0, grid.y1); cy <= cell(y1, grid.y0, grid.y1); cy += 1) {
    rows.push([starts[cy * side + left], starts[cy * side + right + 1]])
  }
  return rows
}

// The ink of each point: the index of its value in the color scale, 0 … 254, or NO_INK for a point without a value and
// for a point on which the gate has no effect.
function computeInks(grid, values, { low, high, noEffect, log }) {
  const inks = new Uint8Array(grid.n)
  const transform = log ? Math.log : (v) => v
  const start = transform(low)
  const factor = high > low ? (N_INKS - 1) / (transform(high) - start) : 0
  const { order } = grid
  for (let k = 0; k < inks.length; k += 1) {
    const v = values[order[k]]
    if (Number.isNaN(v) || v === noEffect) inks[k] = NO_INK
    else if (!factor) inks[k] = N_INKS >> 1
    else inks[k] = v <= low ? 0 : v >= high ? N_INKS - 1 : Math.round((transform(v) - start) * factor)
  }
  return inks
}

function countColored(inks) {
  let count = 0
  for (let k = 0; k < inks.length; k += 1) if (inks[k] !== NO_INK) count += 1
  return count
}

// Mask of the points that pass all filters and are inside the lasso. A point without a value does not pass a filter.
function computeMask(grid, columns, filters, polygon) {
  const chosen = new Uint8Array(grid.n).fill(1)
  const { order } = grid
  for (const [key, [low, high]] of Object.entries(filters)) {
    const values = columns[key]
    for (let k = 0; k < chosen.length; k += 1) {
      const v = values[order[k]]
      if (!(v >= low && v <= high)) chosen[k] = 0
    }
  }
  if (polygon) filterByPolygon(grid, polygon, chosen)
  return chosen
}

// Even-odd rule in double precision, the same as in `app.analysis.selection`.
function filterByPolygon(grid, polygon, chosen) {
  const around = findBounds(polygon.map((at) => at[0]), polygon.map((at) => at[1]))
  const px = Float64Array.from(polygon, (at) => at[0])
  const py = Float64Array.from(polygon, (at) => at[1])
  for (let k = 0; k < chosen.length; k += 1) {
    if (!chosen[k]) continue
    const x = grid.x[k]
    const y = grid.y[k]
    if (x < around.x0 || x > around.x1 || y < around.y0 || y > around.y1) {
      chosen[k] = 0
      continue
    }
    let inside = 0
    for (let a = 0, b = px.length - 1; a < px.length; b = a, a += 1) {
      if (py[a] > y !== py[b] > y && x < ((px[b] - px[a]) * (y - py[a])) / (py[b] - py[a]) + px[a]) inside ^= 1
    }
    chosen[k] = inside
  }
}

// Remove points from the mask whose slot is not marked.
function filterBySlots(grid, slot, marked, chosen) {
  for (let k = 0; k < chosen.length; k += 1) if (!marked[slot[grid.order[k]]]) chosen[k] = 0
}

// Mask of the slots: 1 if the point with this slot is selected.
function makeSlotMask(grid, slot, chosen) {
  let last = 0
  for (let i = 0; i < slot.length; i += 1) if (slot[i] > last) last = slot[i]
  const marked = new Uint8Array(last + 1)
  for (let k = 0; k < chosen.length; k += 1) if (chosen[k]) marked[slot[grid.order[k]]] = 1
  return marked
}

function countSelected(chosen) {
  let count = 0
  for (let k = 0; k < chosen.length; k += 1) count += chosen[k]
  return count
}

function countHistogram(values, low, high, bins) {
  const counts = new Uint32Array(bins)
  const factor = bins / (high - low || 1)
  for (let i = 0; i < values.length; i += 1) {
    const v = values[i]
    if (v >= low && v <= high) counts[Math.min(bins - 1, ((v - low) * factor) | 0)] += 1
  }
  return counts
}

// Find the point nearest to a position on the screen, as index `i` or -1. Selected points have priority.
function pickPoint(grid, chosen, scales, px, py, reach) {
  let [best, nearest, nearestChosen] = [reach, -1, 0]
  const rows = findBucketRows(grid, scales.ux(px - reach), scales.ux(px + reach), scales.uy(py + reach), scales.uy(py - reach))
  for (const [from, to] of rows) {
    for (let k = from; k < to; k += 1) {
      const away = Math.hypot(scales.sx(grid.x[k]) - px, scales.sy(grid.y[k]) - py)
      if (away >= reach || chosen[k] < nearestChosen || (chosen[k] === nearestChosen && away >= best)) continue
      best = away
      nearest = grid.order[k]
      nearestChosen = chosen[k]
    }
  }
  return nearest
}

// Reduce a polygon to at most `most` corners, so that it fits into a URL, and round each corner as in the URL.
function thinPolygon(corners, most) {
  const every = Math.max(1, Math.ceil(corners.length / most))
  return corners.filter((_, at) => at % every === 0).map((at) => at.map((v) => +v.toPrecision(6)))
}
