// Names at the ends of lines: all of them in the margin beside the plot, below each other, so that none lies on a line, a
// tick or another name, wherever its line ends. `spread` in app/figures/render/lines_view.py places those of files alike.

const MOST_LABELS = 8
const LABEL_ROW = 14
const MARGIN_SHARE = 0.36 // of the chart's width; beyond that the legend alone names the lines

function labelled(panel, hidden) {
  return panel.lines.filter((line) => line.label && !line.faint && !hidden.has(line.name) && line.y.some(finite))
}

// Room at the right for the lines' names, if there are few enough lines and the chart is wide enough; else 0.
function marginForLabels(ctx, data, theme, width, hidden, each) {
  const lines = data.panels.map((panel) => labelled(panel, hidden))
  const most = Math.max(0, ...lines.map((each) => each.length))
  if (most < 2 || most > MOST_LABELS || most * LABEL_ROW > each) return 0
  ctx.font = `12px ${theme.font}`
  const widest = Math.max(...lines.flat().map((line) => ctx.measureText(line.label).width)) + 16
  return widest < width * MARGIN_SHARE ? widest : 0
}

// Move places as little as it takes that no two are nearer than `gap`, inside [low, high] where they all fit: without
// the gaps between them it is a regression that never falls, and those that would fall are pooled at their mean.
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
  const found = []
  order.forEach((i, rank) => (found[i] = level[rank] + rank * gap))
  return found
}

// Each line's name in the margin, level with its last point in view; dots lead there from a line that ends early.
function drawEndLabels(ctx, box, panel, { sx, sy }, view, theme, self) {
  const ends = []
  for (const line of labelled(panel, self.hidden)) {
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
  ends.forEach(({ line, x, y }, i) => {
    const steps = self.strong && !isNamed(line, self.strong) ? 0.2 : 1
    const early = right - x > 24
    ctx.strokeStyle = line.color
    ctx.fillStyle = line.color
    ctx.lineWidth = early ? 1 : 0.7
    ctx.setLineDash(early ? [1, 4] : []) // a solid leader across the plot would look like data
    ctx.globalAlpha = steps * (early ? 0.7 : 1)
    ctx.beginPath()
    ctx.moveTo(x + 3, y)
    if (early) ctx.lineTo(right, y)
    ctx.lineTo(right + 8, places[i])
    ctx.stroke()
    ctx.setLineDash([])
    ctx.globalAlpha = steps
    ctx.fillText(line.label, right + 11, places[i])
  })
  ctx.restore()
}
