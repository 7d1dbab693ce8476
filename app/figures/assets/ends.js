// Labels at the ends of lines. All labels are in the right margin and do not overlap lines, ticks or each other.
// `spread` in app/figures/render/lines_view.py computes the same positions for files.

const MAX_LABELS = 8
const LABEL_ROW = 14
const MARGIN_SHARE = 0.36 // largest margin as a fraction of the chart's width; otherwise only the legend has the names

function listLabeled(panel, hidden) {
  return panel.lines.filter((line) => line.label && !line.faint && !hidden.has(line.name) && line.y.some(finite))
}

// Width of the right margin for the labels; 0 if there are too many labels or the chart is too small.
function marginForLabels(ctx, data, theme, width, hidden, panelHeight) {
  const lines = data.panels.map((panel) => listLabeled(panel, hidden))
  const most = Math.max(0, ...lines.map((panelLines) => panelLines.length))
  if (most < 2 || most > MAX_LABELS || most * LABEL_ROW > panelHeight) return 0
  ctx.font = `12px ${theme.font}`
  const widest = Math.max(...lines.flat().map((line) => ctx.measureText(line.label).width)) + 16
  return widest < width * MARGIN_SHARE ? widest : 0
}

// Move positions as little as possible, so that their distance is at least `gap`, inside [low, high] if they fit.
// Subtracting rank × gap turns this into an isotonic regression: neighbors in the wrong order are pooled at their mean.
function spreadPlaces(places, gap, low, high) {
  const mean = (pool) => pool.reduce((sum, value) => sum + value, 0) / pool.length
  const order = places.map((_, i) => i).sort((a, b) => places[a] - places[b])
  const pools = []
  order.forEach((i, rank) => {
    pools.push([places[i] - rank * gap])
    while (pools.length > 1 && mean(pools.at(-2)) > mean(pools.at(-1))) pools.push([...pools.pop(), ...pools.pop()])
  })
  const room = Math.max(low, high - (places.length - 1) * gap)
  const level = pools.flatMap((pool) => pool.map(() => Math.min(Math.max(mean(pool), low), room)))
  const moved = []
  order.forEach((i, rank) => (moved[i] = level[rank] + rank * gap))
  return moved
}

// Draw the label of each line in the margin, at the height of its last visible point. Dots connect a short line. Returns
// the boxes in which the pointer hits a label.
function drawEndLabels(ctx, box, panel, { sx, sy }, view, theme, self) {
  const ends = []
  for (const line of listLabeled(panel, self.hidden)) {
    let last = -1
    for (let i = 0; i < line.x.length; i += 1) if (finite(line.y[i]) && line.x[i] >= view[0] && line.x[i] <= view[1]) last = i
    if (last >= 0) ends.push({ line, x: sx(line.x[last]), y: sy(line.y[last]) })
  }
  const right = box.x + box.width
  const places = spreadPlaces(ends.map((end) => end.y), LABEL_ROW, box.y, box.y + box.height)
  ctx.save()
  ctx.font = `12px ${theme.font}`
  ctx.textBaseline = "middle"
  ctx.textAlign = "left"
  const { name, others } = getHighlight(self)
  const isDimmed = ends.some(({ line }) => isNamed(line, name))
  const color = isDark(ctx.canvas) ? "dark" : "light"
  const hits = []
  ends.forEach(({ line, x, y }, i) => {
    const opacity = isDimmed && !isNamed(line, name) ? Math.max(others, 0.6) : 1
    const early = right - x > 24
    ctx.strokeStyle = line.color
    ctx.fillStyle = line.textColor?.[color] || line.color
    ctx.lineWidth = early ? 1 : 0.7
    ctx.setLineDash(early ? [1, 4] : []) // a solid leader across the plot would look like data
    ctx.globalAlpha = opacity * (early ? 0.7 : 1)
    ctx.beginPath()
    ctx.moveTo(x + 3, y)
    if (early) ctx.lineTo(right, y)
    ctx.lineTo(right + 8, places[i])
    ctx.stroke()
    ctx.setLineDash([])
    ctx.globalAlpha = opacity
    ctx.fillText(line.label, right + 11, places[i])
    const width = ctx.measureText(line.label).width
    hits.push({ name: line.name, x: right + 8, y: places[i] - LABEL_ROW / 2, width: width + 3, height: LABEL_ROW })
  })
  ctx.restore()
  return hits
}
