// The field of one episode of the player: the units between two frames; or the state as a strip, if the environment
// cannot be drawn. app/replay/layout.py computes what is drawn. This script converts field units to pixels and draws.

const MAX_FIELD_HEIGHT = { wide: 310, pair: 200, narrow: 230 } // [px]
const MAX_STRIP_HEIGHT = 250
const HOVER_RADIUS = 14 // pixels
const NEUTRAL_TEAM = 2
const NO_LEVEL = 255 // of an entry of the state that is constant or not finite

// Draw a side at a moment. `maxHeight` is in pixels.
function drawSide(side, frame, theme, maxHeight, meta) {
  const width = Math.floor(side.field.clientWidth)
  if (width < 40) return
  if (!side.units) {
    drawStrip(side, frame, theme, width, Math.min(maxHeight, MAX_STRIP_HEIGHT), meta.ramp)
    return
  }
  const scale = side.scale = makeFieldScale(side, width, maxHeight)
  const { ctx, ratio } = fitCanvas(side.field, scale.height)
  const groundKey = [width, scale.height, ratio, theme.background, theme.text].join()
  if (side.groundKey !== groundKey) { // the ground does not change: it is drawn once per size and theme
    side.groundKey = groundKey
    side.ground = drawGround(side, theme, ratio)
  }
  ctx.drawImage(side.ground, 0, 0, width, scale.height)
  clipToField(ctx, side)
  const units = Array.from(side.labels, (_, u) => mixUnit(side, u, frame, meta))
  const bodies = units.filter((unit) => !unit.isNeutral)
  const drawing = { ctx, side, units, frame, theme, style: meta.style }
  for (const unit of units) drawTrail(drawing, unit)
  drawPasses(drawing)
  drawAims(drawing)
  for (const unit of bodies) drawUnit(drawing, unit)
  if (side.has_rings) for (const unit of bodies) drawRings(drawing, unit)
  drawCarrier(drawing)
  for (const unit of bodies) drawDeath(drawing, unit)
  drawReach(drawing)
  for (const unit of bodies) drawLabel(drawing, unit)
  for (const unit of units) if (unit.isNeutral) drawUnit(drawing, unit) // the ball is above the players
}

function makeFieldScale(side, width, maxHeight) {
  const [x0, y0, x1, y1] = side.bounds
  const pxPerUnit = Math.min(width / (x1 - x0), maxHeight / (y1 - y0))
  const fieldWidth = (x1 - x0) * pxPerUnit
  const left = (width - fieldWidth) / 2
  const height = (y1 - y0) * pxPerUnit
  const toX = (x) => left + (x - x0) * pxPerUnit
  const toY = (y) => height - (y - y0) * pxPerUnit
  return { pxPerUnit, width, height, left, fieldWidth, toX, toY }
}

// The frame of a side. A shorter episode stays at its last frame.
function clampFrame(side, frame) {
  return Math.max(0, Math.min(side.frames - 1, frame))
}

// What is drawn of unit u at a moment between two frames, in pixels. `mix_frames` of app/replay/layout.py does the same.
function mixUnit(side, u, frame, { style, teams }) {
  const { position, alive, health, shield, hit, death, radius, min_radius_px: minRadius, team } = side.arrays
  const { pxPerUnit, toX, toY } = side.scale
  const t = Math.floor(frame)
  const fraction = frame - t
  const now = t * side.units + u
  const next = Math.min(t + 1, side.frames - 1) * side.units + u
  const mix = (values, first, second) => values[first] * (1 - fraction) + values[second] * fraction
  return {
    x: toX(mix(position, 2 * now, 2 * next)),
    y: toY(mix(position, 2 * now + 1, 2 * next + 1)),
    presence: mix(alive, now, next),
    health: mix(health, now, next),
    shield: mix(shield, now, next),
    hit: Math.max(0, hit[now] - fraction / style.hit_steps),
    death: Math.max(0, death[now] - fraction / style.death_steps),
    u,
    radius: Math.max(minRadius[u], radius[u] * pxPerUnit),
    color: teams[team[u]].color,
    isSquare: teams[team[u]].is_square,
    isNeutral: team[u] === NEUTRAL_TEAM,
  }
}

// The position of unit u at a frame, in pixels.
function pointOf(side, u, t) {
  const index = (t * side.units + u) * 2
  return { x: side.scale.toX(side.arrays.position[index]), y: side.scale.toY(side.arrays.position[index + 1]) }
}

function clipToField(ctx, { scale }) {
  ctx.beginPath()
  ctx.rect(scale.left, 0, scale.fieldWidth, scale.height)
  ctx.clip()
}

function drawGround(side, theme, ratio) {
  const { scale } = side
  const ground = document.createElement("canvas")
  ground.width = Math.max(1, Math.round(scale.width * ratio))
  ground.height = Math.max(1, Math.round(scale.height * ratio))
  const ctx = ground.getContext("2d")
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
  clipToField(ctx, side)
  ctx.fillStyle = theme.raised
  ctx.fill()
  drawCells(ctx, side, theme)
  drawMarkings(ctx, side, theme)
  return ground
}

// Draw the cells that are not walkable.
function drawCells(ctx, { arrays: { walkable }, cells, scale }, theme) {
  if (!walkable) return
  const [columns, rows] = cells
  ctx.fillStyle = theme.faint
  for (let x = 0; x < columns; x += 1) {
    for (let y = 0; y < rows; y += 1) {
      if (walkable[x * rows + y]) continue
      const left = Math.floor(scale.toX(x))
      const top = Math.floor(scale.toY(y + 1))
      ctx.fillRect(left, top, Math.floor(scale.toX(x + 1)) - left, Math.floor(scale.toY(y)) - top)
    }
  }
}

// Draw the lines painted on the field, which are segments x0, y0, x1, y1.
function drawMarkings(ctx, { arrays: { markings }, scale }, theme) {
  if (!markings) return
  ctx.strokeStyle = theme.soft
  ctx.lineWidth = 1.5
  ctx.beginPath()
  for (let i = 0; i < markings.length; i += 4) {
    ctx.moveTo(scale.toX(markings[i]), scale.toY(markings[i + 1]))
    ctx.lineTo(scale.toX(markings[i + 2]), scale.toY(markings[i + 3]))
  }
  ctx.stroke()
}

// Draw the last steps of a living unit as a line that fades toward the past.
function drawTrail({ ctx, side, frame, style }, unit) {
  if (!(unit.presence > 0)) return
  const t = Math.floor(frame)
  ctx.strokeStyle = unit.color
  ctx.lineWidth = style.trail_width
  for (let step = Math.max(0, t - style.trail_steps + 1); step <= t; step += 1) {
    const start = pointOf(side, unit.u, step)
    const end = step < t ? pointOf(side, unit.u, step + 1) : unit
    ctx.globalAlpha = style.trail_opacity * (1 - (t - step) / style.trail_steps) * unit.presence
    ctx.beginPath()
    ctx.moveTo(start.x, start.y)
    ctx.lineTo(end.x, end.y)
    ctx.stroke()
  }
  ctx.globalAlpha = 1
}

// Draw the passes of the last steps as arrows from the passing to the receiving player. A pass in flight is drawn too.
function drawPasses({ ctx, side, units, frame, style }) {
  const { passes } = side.arrays
  ctx.lineWidth = style.pass_width
  for (let i = 0; i < passes.length; i += 4) {
    const [first, last, u, receiver] = passes.slice(i, i + 4)
    if (frame < first || frame > last + style.pass_steps) continue
    const age = Math.max(0, frame - last)
    ctx.strokeStyle = ctx.fillStyle = units[u].color
    ctx.globalAlpha = style.pass_opacity * (1 - age / (style.pass_steps + 1))
    drawArrow(ctx, pointOf(side, u, first), pointOf(side, receiver, last), units[receiver].radius, style)
  }
  ctx.globalAlpha = 1
}

// Draw a dashed arrow from each unit to its target.
function drawAims({ ctx, side, units, frame, style }) {
  const first = Math.floor(frame) * side.units
  ctx.lineWidth = style.aim_width
  for (const unit of units) {
    const target = units[side.arrays.target[first + unit.u]]
    if (!target) continue
    ctx.strokeStyle = ctx.fillStyle = unit.color
    ctx.globalAlpha = style.aim_opacity * unit.presence
    drawArrow(ctx, unit, target, target.radius, style, style.aim_dash)
  }
  ctx.globalAlpha = 1
}

// Draw an arrow that ends at the edge of its target, which has this radius. No arrow is drawn inside of the target.
function drawArrow(ctx, start, target, radius, style, dash = []) {
  const distance = Math.hypot(target.x - start.x, target.y - start.y)
  const length = distance - radius - style.arrow_clearance
  if (length <= 0) return
  const dx = (target.x - start.x) / distance
  const dy = (target.y - start.y) / distance
  const tip = { x: start.x + dx * length, y: start.y + dy * length }
  const back = { x: tip.x - dx * style.arrow_back, y: tip.y - dy * style.arrow_back }
  ctx.setLineDash(dash)
  ctx.beginPath()
  ctx.moveTo(start.x, start.y)
  ctx.lineTo(tip.x, tip.y)
  ctx.stroke()
  ctx.setLineDash([])
  ctx.beginPath()
  ctx.moveTo(tip.x + dx * style.arrow_tip, tip.y + dy * style.arrow_tip)
  ctx.lineTo(back.x - dy * style.arrow_half_width, back.y + dx * style.arrow_half_width)
  ctx.lineTo(back.x + dy * style.arrow_half_width, back.y - dx * style.arrow_half_width)
  ctx.closePath()
  ctx.fill()
}

// Draw a unit with an orange edge if it was hit. A dead unit is a cross.
function drawUnit({ ctx, theme, style }, { x, y, radius, color, isSquare, presence, hit }) {
  ctx.globalAlpha = style.cross_opacity * (1 - presence)
  if (presence < 1) drawCross(ctx, x, y, radius * style.cross_size, color, style.cross_width)
  ctx.globalAlpha = presence
  if (presence > 0) {
    const half = radius * style.square_size
    ctx.beginPath()
    if (isSquare) ctx.rect(x - half, y - half, 2 * half, 2 * half)
    else ctx.arc(x, y, radius, 0, 2 * Math.PI)
    ctx.fillStyle = color
    ctx.fill()
    ctx.strokeStyle = theme.background
    ctx.lineWidth = style.body_edge
    ctx.stroke()
    if (hit > 0) {
      ctx.strokeStyle = style.hit_color
      ctx.globalAlpha = presence * hit
      ctx.lineWidth = style.hit_width
      ctx.stroke()
    }
  }
  ctx.globalAlpha = 1
}

function drawCross(ctx, x, y, half, color, width) {
  ctx.strokeStyle = color
  ctx.lineWidth = width
  ctx.beginPath()
  ctx.moveTo(x - half, y - half)
  ctx.lineTo(x + half, y + half)
  ctx.moveTo(x + half, y - half)
  ctx.lineTo(x - half, y + half)
  ctx.stroke()
}

// Draw health as an arc around a unit, clockwise from the top, and shield as an arc around it.
function drawRings({ ctx, theme, style }, unit) {
  if (!(unit.presence > 0)) return
  ctx.globalAlpha = unit.presence
  ctx.lineWidth = style.ring_width
  drawRing(ctx, unit, unit.radius + style.health_offset, theme.faint)
  drawRing(ctx, unit, unit.radius + style.health_offset, theme.text, unit.health)
  if (unit.shield > 0) drawRing(ctx, unit, unit.radius + style.shield_offset, theme.primary, unit.shield)
  ctx.globalAlpha = 1
}

// Draw a part of a circle around a unit, clockwise from the top.
function drawRing(ctx, unit, radius, color, fraction = 1) {
  ctx.strokeStyle = color
  ctx.beginPath()
  ctx.arc(unit.x, unit.y, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * Math.max(0, Math.min(1, fraction)))
  ctx.stroke()
}

// Draw the ring of the player who has the ball.
function drawCarrier({ ctx, side, units, frame, theme, style }) {
  const unit = units[side.arrays.carrier?.[Math.floor(frame)]]
  if (!unit) return
  ctx.lineWidth = style.ring_width
  drawRing(ctx, unit, unit.radius + style.carrier_offset, theme.text)
}

// Draw a ring that grows and fades when a unit dies.
function drawDeath({ ctx, style }, unit) {
  if (!(unit.death > 0)) return
  const [firstSize, lastSize] = style.death_sizes
  ctx.globalAlpha = unit.death
  ctx.lineWidth = style.death_width
  drawRing(ctx, unit, unit.radius * (lastSize + (firstSize - lastSize) * unit.death), style.hit_color)
  ctx.globalAlpha = 1
}

// Draw the weapon range of the unit under the pointer.
function drawReach({ ctx, side, units, theme }) {
  const unit = units[side.hovered]
  const reach = side.arrays.reach?.[side.hovered]
  if (!(reach > 0) || !(unit.presence > 0)) return
  ctx.lineWidth = 1.5
  ctx.setLineDash([6, 4])
  drawRing(ctx, unit, reach * side.scale.pxPerUnit, theme.text)
  ctx.setLineDash([])
}

// Draw the label of a unit with an outline in the color of its team.
function drawLabel({ ctx, side, theme, style }, { u, x, y, radius, color, presence }) {
  if (!(presence > 0)) return
  const [smallest, largest] = style.label_sizes
  ctx.globalAlpha = presence
  ctx.font = `600 ${Math.max(smallest, Math.min(largest, radius))}px ${theme.font}`
  ctx.textAlign = "center"
  ctx.textBaseline = "middle"
  ctx.lineWidth = style.label_outline
  ctx.lineJoin = "round"
  ctx.strokeStyle = color
  ctx.strokeText(side.labels[u], x, y + 0.5)
  ctx.fillStyle = "#ffffff"
  ctx.fillText(side.labels[u], x, y + 0.5)
  ctx.globalAlpha = 1
}

// Draw the state over time: one row per entry. The color scale of a row is from its smallest to its largest value.
function drawStrip(side, frame, theme, width, height, ramp) {
  const { ctx } = fitCanvas(side.field, height)
  const rows = side.entries.length
  ctx.fillStyle = theme.raised
  ctx.fillRect(0, 0, width, height)
  if (!rows || !side.arrays.levels) return
  const hasNames = height / rows >= 12 && width > 260
  const left = hasNames ? Math.min(130, width / 4) : 8
  const box = side.box = { x: left, y: 6, width: width - left - 8, height: height - 26 }
  side.image ||= makeLevelImage(side, ramp)
  ctx.imageSmoothingEnabled = rows > box.height
  ctx.drawImage(side.image, box.x, box.y, box.width, box.height)
  ctx.font = `12px ${theme.font}`
  ctx.fillStyle = theme.soft
  ctx.textBaseline = "middle"
  if (hasNames) {
    ctx.textAlign = "right"
    const rowHeight = box.height / rows
    side.entries.forEach((name, row) => ctx.fillText(name, left - 6, box.y + (row + 0.5) * rowHeight, left - 10))
  }
  ctx.textAlign = "left"
  ctx.fillText(`state, ${rows} entries, each scaled from its minimum to its maximum`, box.x, height - 9, box.width)
  const x = box.x + ((frame + 0.5) / side.frames) * box.width
  ctx.lineWidth = 4
  for (const color of [theme.background, theme.text]) {
    ctx.strokeStyle = color
    ctx.beginPath()
    ctx.moveTo(x, 2)
    ctx.lineTo(x, box.y + box.height + 4)
    ctx.stroke()
    ctx.lineWidth = 1.5
  }
}

// Make an image with one pixel per frame and entry of the state. `ramp` lists the colors from the lowest level.
function makeLevelImage(side, ramp) {
  const { levels } = side.arrays
  const rows = side.entries.length
  const image = document.createElement("canvas")
  image.width = side.frames
  image.height = rows
  const ctx = image.getContext("2d")
  const pixels = ctx.createImageData(side.frames, rows)
  const colors = ramp.map((color) => [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16)))
  for (let t = 0; t < side.frames; t += 1) {
    for (let row = 0; row < rows; row += 1) {
      const level = levels[t * rows + row]
      const color = colors[Math.round((level / 254) * (colors.length - 1))] || [128, 128, 128]
      pixels.data.set([...color, level === NO_LEVEL ? 40 : 255], (row * side.frames + t) * 4)
    }
  }
  ctx.putImageData(pixels, 0, 0)
  return image
}

// The nearest unit at the pointer [px], or -1.
function findUnit(side, frame, pointer, meta) {
  if (!side.scale) return -1
  let nearest = -1
  let minDistance = HOVER_RADIUS
  for (let u = 0; u < side.units; u += 1) {
    const { x, y } = mixUnit(side, u, frame, meta)
    const distance = Math.hypot(x - pointer.x, y - pointer.y)
    if (distance < minDistance) [nearest, minDistance] = [u, distance]
  }
  return nearest
}

// The text of the tooltip: the hovered unit with its action, or an entry of the state.
function describeAt(side, frame, pointer, teams) {
  if (!side.units) return describeEntry(side, pointer)
  const { hovered } = side
  if (hovered < 0) return null
  const t = Math.floor(frame)
  const i = t * side.units + hovered
  const percent = (value) => `${Math.round(value * 100)} %`
  const team = side.arrays.team[hovered]
  const parts = [`${teams[team].name} ${side.labels[hovered]}, ${side.kind[hovered]}`]
  if (team !== NEUTRAL_TEAM) {
    parts.push(side.arrays.alive[i] ? `health ${percent(side.arrays.health[i])}` : "dead")
    if (side.arrays.shield[i] > 0) parts.push(`shield ${percent(side.arrays.shield[i])}`)
  }
  const action = team === 0 ? findAction(side, t, hovered) : null
  if (action) parts.push(action.name)
  return parts.join(" · ")
}

function describeEntry(side, pointer) {
  if (!side.box) return null
  const row = Math.floor(((pointer.y - side.box.y) / side.box.height) * side.entries.length)
  const t = Math.floor(((pointer.x - side.box.x) / side.box.width) * side.frames)
  if (row < 0 || row >= side.entries.length || t < 0 || t >= side.frames) return null
  return `${side.entries[row]} · t = ${t} · ${formatNumber(side.arrays.values[t * side.entries.length + row])}`
}

function findAction(side, t, agent) {
  if (!side.arrays.action || agent >= side.agents || t >= side.frames - 1) return null
  return side.actions[side.arrays.action[t * side.agents + agent]] || null
}

// Draw the actions of all sides: one row per agent, one cell per step.
function drawActions(ctx, box, sides, names, xRange, theme) {
  const sidesWithAgents = sides.map((side, number) => ({ side, name: names[number] })).filter(({ side }) => side.agents)
  const agents = sidesWithAgents.reduce((sum, { side }) => sum + side.agents, 0)
  if (!agents) return
  const gap = 6
  const rowHeight = Math.min(18, (box.height - gap * (sidesWithAgents.length - 1)) / agents)
  const stepWidth = box.width / Math.max(1, xRange[1])
  let y = box.y
  ctx.save()
  ctx.font = `${Math.min(11, rowHeight)}px ${theme.font}`
  ctx.textBaseline = "middle"
  for (const { side, name } of sidesWithAgents) {
    for (let agent = 0; agent < side.agents; agent += 1) {
      ctx.textAlign = "right"
      ctx.fillStyle = theme.soft
      if (rowHeight >= 9) ctx.fillText(`${name}${agent}`, box.x - 6, y + rowHeight / 2)
      ctx.textAlign = "center"
      for (let t = 0; t < side.frames - 1; t += 1) {
        const action = findAction(side, t, agent)
        if (!action || !action.color) continue
        ctx.fillStyle = action.color
        ctx.fillRect(box.x + t * stepWidth, y + 0.5, Math.max(1, stepWidth - 0.5), Math.max(1, rowHeight - 1))
        if (!action.mark || stepWidth < 9 || rowHeight < 9) continue
        ctx.fillStyle = "#ffffff"
        ctx.fillText(action.mark, box.x + (t + 0.5) * stepWidth, y + rowHeight / 2)
      }
      y += rowHeight
    }
    y += gap
  }
  ctx.restore()
}
