// The field of one side of the player: the units, interpolated between steps; or the state as a strip, if there is no
// drawing for the environment. app/replay/field.py and drawing.py do the same for files.

const FIELD_MAX = { wide: 330, pair: 235, narrow: 230 } // largest height of a field [px]
const STRIP_HEIGHT = 250
const TRAIL_STEPS = 8
const HIT_COLOR = "#ffb000"
const HOVER_RADIUS = 14 // pixels

// The frame of a side. A shorter episode stays at its last frame.
function clampFrame(side, frame) {
  return Math.max(0, Math.min(side.frames - 1, frame))
}

// The position, health, shield and opacity (`presence`) of unit u at a moment. A unit that dies fades without moving.
// `hit` is 1 at the start of a step in which the unit loses health or shield, and falls to 0 at its end.
// `death` is 1 at the start of the step in which it dies, and falls to 0 in two steps.
function momentOf(side, u, frame) {
  const { position, alive, health, shield } = side.arrays
  const t = Math.floor(frame)
  const next = Math.min(t + 1, side.frames - 1)
  const [here, there] = [t * side.units + u, next * side.units + u]
  const part = frame - t
  const move = alive[there] ? part : 0
  const mix = (values, by) => values[here] * (1 - by) + values[there] * by
  const at = (axis) => position[here * 2 + axis] * (1 - move) + position[there * 2 + axis] * move
  const loss = health[here] - health[there] + shield[here] - shield[there]
  const before = Math.max(t - 1, 0) * side.units + u
  const sinceDeath = !alive[there] && alive[here] ? part : !alive[here] && alive[before] ? 1 + part : 2 // in steps
  return {
    place: [at(0), at(1)], health: mix(health, part), shield: mix(shield, part), presence: mix(alive, part),
    hit: loss > 1e-6 && alive[here] ? 1 - part : 0, death: 1 - sinceDeath / 2,
  }
}

function fieldScale(side, width, most) {
  const [x0, y0, x1, y1] = side.bounds
  const scale = Math.min(width / (x1 - x0), most / (y1 - y0))
  const offset = (width - (x1 - x0) * scale) / 2
  const height = (y1 - y0) * scale
  return { scale, height, width, sx: (x) => offset + (x - x0) * scale, sy: (y) => height - (y - y0) * scale }
}

// Draw a side at a moment. `most` is the largest height of the field [px].
function drawSide(side, frame, theme, most, teams, ramp) {
  const width = Math.floor(side.field.clientWidth)
  if (width < 40) return
  if (!side.units) {
    drawStrip(side, frame, theme, width, Math.min(most, STRIP_HEIGHT), ramp)
    return
  }
  const view = fieldScale(side, width, most)
  side.view = view
  const { ctx, ratio } = fitCanvas(side.field, view.height)
  const look = [width, view.height, ratio, theme.background, theme.text].join()
  if (side.groundLook !== look) {
    side.groundLook = look
    side.ground = paintGround(side, view, theme, ratio)
  }
  ctx.drawImage(side.ground, 0, 0, width, view.height)
  const [x0, , x1] = side.bounds
  ctx.beginPath()
  ctx.rect(view.sx(x0), 0, view.sx(x1) - view.sx(x0), view.height)
  ctx.clip()
  const units = Array.from({ length: side.units }, (_, u) => momentOf(side, u, frame))
  units.forEach((unit, u) => drawTrail(side, ctx, view, u, unit, frame, teams))
  drawPasses(side, ctx, view, frame, teams)
  drawTargets(side, ctx, view, units, frame, teams)
  const isNeutral = (u) => side.team[u] === 2
  units.forEach((unit, u) => isNeutral(u) || drawUnit(side, ctx, view, theme, u, unit, teams))
  if (side.rings) units.forEach((unit, u) => drawRings(side, ctx, view, theme, u, unit))
  drawCarrier(side, ctx, view, theme, units, frame)
  units.forEach((unit, u) => drawDeath(side, ctx, view, u, unit))
  drawReach(side, ctx, view, theme, units)
  units.forEach((unit, u) => drawNumber(side, ctx, view, theme, u, unit, teams))
  units.forEach((unit, u) => isNeutral(u) && drawUnit(side, ctx, view, theme, u, unit, teams)) // the ball is above the players
}

// Draw the last steps of a living unit as a line that fades toward the past.
function drawTrail(side, ctx, view, u, { place, presence }, frame, teams) {
  if (!(presence > 0)) return
  const { position } = side.arrays
  const t = Math.floor(frame)
  const first = Math.max(0, t - TRAIL_STEPS + 1)
  ctx.strokeStyle = teams[side.team[u]].color
  ctx.lineWidth = 2
  for (let step = first; step <= t; step += 1) {
    const at = (step * side.units + u) * 2
    const next = at + 2 * side.units
    const [x, y] = step < t ? [position[next], position[next + 1]] : place
    ctx.globalAlpha = 0.6 * ((step - t + TRAIL_STEPS) / TRAIL_STEPS) * presence
    ctx.beginPath()
    ctx.moveTo(view.sx(position[at]), view.sy(position[at + 1]))
    ctx.lineTo(view.sx(x), view.sy(y))
    ctx.stroke()
  }
  ctx.globalAlpha = 1
}

// The background does not change. It is drawn once per size and theme.
function paintGround(side, view, theme, ratio) {
  const ground = document.createElement("canvas")
  ground.width = Math.max(1, Math.round(view.width * ratio))
  ground.height = Math.max(1, Math.round(view.height * ratio))
  const ctx = ground.getContext("2d")
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
  const [x0, , x1] = side.bounds
  ctx.fillStyle = theme.raised
  ctx.beginPath()
  ctx.rect(view.sx(x0), 0, view.sx(x1) - view.sx(x0), view.height)
  ctx.clip()
  ctx.fill()
  drawCells(side, ctx, view, theme)
  drawMarkings(side, ctx, view, theme)
  return ground
}

function drawCells(side, ctx, view, theme) {
  const { walkable } = side.arrays
  if (!walkable) return
  const [columns, rows] = side.cells
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
function drawMarkings(side, ctx, view, theme) {
  const { markings } = side.arrays
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

// Draw the ring of the player who has the ball.
function drawCarrier(side, ctx, view, theme, units, frame) {
  const u = side.arrays.carrier?.[Math.floor(frame)] ?? -1
  if (u < 0) return
  ctx.strokeStyle = theme.text
  ctx.lineWidth = 3
  strokeCircle(ctx, view, units[u].place, getRadius(side, view, u) + 4)
}

// Draw the passes of the last steps as arrows from the passing to the receiving player. A pass in flight is drawn too.
function drawPasses(side, ctx, view, frame, teams) {
  const { passes, position } = side.arrays
  for (let i = 0; i < (passes?.length || 0); i += 4) {
    const [first, last, from, to] = passes.slice(i, i + 4)
    if (frame < first || frame > last + TRAIL_STEPS) continue
    const [start, end] = [(first * side.units + from) * 2, (last * side.units + to) * 2]
    const place = (at) => [view.sx(position[at]), view.sy(position[at + 1])]
    ctx.globalAlpha = 0.9 * (1 - Math.max(0, frame - last) / (TRAIL_STEPS + 1))
    ctx.strokeStyle = ctx.fillStyle = teams[side.team[from]].color
    ctx.lineWidth = 2.5
    drawArrow(ctx, place(start), place(end), getRadius(side, view, to) + 3)
    ctx.globalAlpha = 1
  }
}

// Draw a ring that grows and fades when a unit dies.
function drawDeath(side, ctx, view, u, { place, death }) {
  if (!(death > 0) || side.team[u] === 2) return
  ctx.globalAlpha = death
  ctx.strokeStyle = HIT_COLOR
  ctx.lineWidth = 3
  strokeCircle(ctx, view, place, getRadius(side, view, u) * (2.4 - 1.2 * death))
  ctx.globalAlpha = 1
}

// Draw the weapon range of the unit under the pointer.
function drawReach(side, ctx, view, theme, units) {
  const u = side.hovered
  const reach = side.arrays.reach?.[u]
  if (!(reach > 0) || !(units[u].presence > 0)) return
  ctx.strokeStyle = theme.text
  ctx.lineWidth = 1.5
  ctx.setLineDash([6, 4])
  strokeCircle(ctx, view, units[u].place, reach * view.scale)
  ctx.setLineDash([])
}

function strokeCircle(ctx, view, [x, y], radius) {
  ctx.beginPath()
  ctx.arc(view.sx(x), view.sy(y), radius, 0, 7)
  ctx.stroke()
}

// Draw an arrow that ends `clear` pixels before its target. Nothing is drawn if the target is nearer.
function drawArrow(ctx, [x, y], [targetX, targetY], clear, dash = []) {
  let [dx, dy] = [targetX - x, targetY - y]
  const far = Math.hypot(dx, dy)
  if (far <= clear) return
  dx /= far
  dy /= far
  const [tx, ty] = [x + dx * (far - clear), y + dy * (far - clear)]
  ctx.setLineDash(dash)
  ctx.beginPath()
  ctx.moveTo(x, y)
  ctx.lineTo(tx, ty)
  ctx.stroke()
  ctx.setLineDash([])
  ctx.beginPath()
  ctx.moveTo(tx + dx * 3, ty + dy * 3)
  ctx.lineTo(tx - dx * 6 - dy * 4, ty - dy * 6 + dx * 4)
  ctx.lineTo(tx - dx * 6 + dy * 4, ty - dy * 6 - dx * 4)
  ctx.closePath()
  ctx.fill()
}

// Draw a dashed arrow from each unit to the target of its action.
function drawTargets(side, ctx, view, units, frame, teams) {
  const { target, alive } = side.arrays
  if (!target) return
  const t = Math.floor(frame)
  for (let u = 0; u < side.units; u += 1) {
    const aim = target[t * side.units + u]
    if (aim < 0 || aim >= side.units || !alive[t * side.units + u]) continue
    const place = (unit) => [view.sx(units[unit].place[0]), view.sy(units[unit].place[1])]
    ctx.strokeStyle = ctx.fillStyle = teams[side.team[u]].color
    ctx.globalAlpha = 0.7 * units[u].presence
    ctx.lineWidth = 1.6
    drawArrow(ctx, place(u), place(aim), getRadius(side, view, aim) + 3, [5, 4])
    ctx.globalAlpha = 1
  }
}

// Agents and neutral units are circles, opponents are squares. The shape repeats the information of the color.
function outline(ctx, team, x, y, r) {
  ctx.beginPath()
  if (team === 1) ctx.rect(x - r * 0.9, y - r * 0.9, r * 1.8, r * 1.8)
  else ctx.arc(x, y, r, 0, 7)
}

function drawUnit(side, ctx, view, theme, u, { place, presence, hit }, teams) {
  const [x, y] = [view.sx(place[0]), view.sy(place[1])]
  const team = side.team[u]
  const r = getRadius(side, view, u)
  if (presence < 1) {
    ctx.strokeStyle = teams[team].color
    ctx.globalAlpha = 0.45 * (1 - presence)
    ctx.lineWidth = 2
    ctx.beginPath()
    ctx.moveTo(x - r * 0.6, y - r * 0.6)
    ctx.lineTo(x + r * 0.6, y + r * 0.6)
    ctx.moveTo(x + r * 0.6, y - r * 0.6)
    ctx.lineTo(x - r * 0.6, y + r * 0.6)
    ctx.stroke()
  }
  ctx.globalAlpha = presence
  if (presence > 0) {
    outline(ctx, team, x, y, r)
    ctx.fillStyle = teams[team].color
    ctx.fill()
    ctx.strokeStyle = theme.background
    ctx.lineWidth = 1.5
    ctx.stroke()
    if (hit > 0) {
      ctx.strokeStyle = HIT_COLOR
      ctx.globalAlpha = presence * hit
      ctx.lineWidth = 4
      ctx.stroke()
    }
  }
  ctx.globalAlpha = 1
}

// Draw the number of a unit with an outline in the color of its team.
function drawNumber(side, ctx, view, theme, u, { place, presence }, teams) {
  const team = side.team[u]
  if (!(presence > 0) || team === 2) return
  ctx.globalAlpha = presence
  ctx.font = `600 ${Math.max(9, Math.min(13, getRadius(side, view, u)))}px ${theme.font}`
  ctx.textAlign = "center"
  ctx.textBaseline = "middle"
  ctx.lineWidth = 3
  ctx.lineJoin = "round"
  ctx.strokeStyle = teams[team].color
  ctx.strokeText(side.labels[u], view.sx(place[0]), view.sy(place[1]) + 0.5)
  ctx.fillStyle = "#ffffff"
  ctx.fillText(side.labels[u], view.sx(place[0]), view.sy(place[1]) + 0.5)
  ctx.globalAlpha = 1
}

function getRadius(side, view, u) {
  return Math.max(side.team[u] === 2 ? 4 : 8, side.arrays.radius[u] * view.scale)
}

// Draw health as an arc around a unit, clockwise from the top, and shield as an arc around it.
function drawRings(side, ctx, view, theme, u, { place, health, shield, presence }) {
  if (!presence || side.team[u] === 2) return
  const [x, y, r] = [view.sx(place[0]), view.sy(place[1]), getRadius(side, view, u)]
  const arc = (radius, part, color) => {
    ctx.strokeStyle = color
    ctx.beginPath()
    ctx.arc(x, y, radius, -Math.PI / 2, -Math.PI / 2 + 2 * Math.PI * Math.max(0, Math.min(1, part)))
    ctx.stroke()
  }
  ctx.globalAlpha = presence
  ctx.lineWidth = 3
  arc(r + 2.5, 1, theme.faint)
  arc(r + 2.5, health, theme.text)
  if (shield > 0) arc(r + 5.5, shield, theme.primary)
  ctx.globalAlpha = 1
}

// Draw the state over time: one row per entry. The color scale of a row is from its smallest to its largest value.
function drawStrip(side, frame, theme, width, height, ramp) {
  const { ctx } = fitCanvas(side.field, height)
  const rows = side.entries.length
  ctx.fillStyle = theme.raised
  ctx.fillRect(0, 0, width, height)
  if (!rows || !side.arrays.levels) return
  const names = height / rows >= 12 && width > 260
  const left = names ? Math.min(130, width / 4) : 8
  side.box = { x: left, y: 6, width: width - left - 8, height: height - 26 }
  side.image ||= paintLevels(side, ramp)
  ctx.imageSmoothingEnabled = rows > side.box.height
  ctx.drawImage(side.image, side.box.x, side.box.y, side.box.width, side.box.height)
  ctx.font = `12px ${theme.font}`
  ctx.fillStyle = theme.soft
  ctx.textBaseline = "middle"
  if (names) {
    ctx.textAlign = "right"
    const rowHeight = side.box.height / rows
    side.entries.forEach((name, row) => ctx.fillText(name, left - 6, side.box.y + (row + 0.5) * rowHeight, left - 10))
  }
  ctx.textAlign = "left"
  ctx.fillText(`state, ${rows} entries, each scaled from its minimum to its maximum`, side.box.x, height - 9, side.box.width)
  const x = side.box.x + ((frame + 0.5) / side.frames) * side.box.width
  ctx.strokeStyle = theme.background
  ctx.lineWidth = 4
  for (const color of [theme.background, theme.text]) {
    ctx.strokeStyle = color
    ctx.beginPath()
    ctx.moveTo(x, 2)
    ctx.lineTo(x, side.box.y + side.box.height + 4)
    ctx.stroke()
    ctx.lineWidth = 1.5
  }
}

const NO_LEVEL = 255
function paintLevels(side, ramp) {
  const { levels } = side.arrays
  const rows = side.entries.length
  const image = document.createElement("canvas")
  image.width = side.frames
  image.height = rows
  const ctx = image.getContext("2d")
  const pixels = ctx.createImageData(side.frames, rows)
  const parts = ramp.map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)))
  for (let t = 0; t < side.frames; t += 1) {
    for (let row = 0; row < rows; row += 1) {
      const level = levels[t * rows + row]
      const color = parts[Math.round((level / 254) * (parts.length - 1))] || [128, 128, 128]
      pixels.data.set([...color, level === NO_LEVEL ? 40 : 255], (row * side.frames + t) * 4)
    }
  }
  ctx.putImageData(pixels, 0, 0)
  return image
}

// The nearest unit at the pointer, or -1.
function findUnit(side, frame, mouse) {
  let [nearest, least] = [-1, HOVER_RADIUS]
  for (let u = 0; u < side.units && side.view; u += 1) {
    const { place } = momentOf(side, u, frame)
    const far = Math.hypot(side.view.sx(place[0]) - mouse[0], side.view.sy(place[1]) - mouse[1])
    if (far < least) [nearest, least] = [u, far]
  }
  return nearest
}

// The text of the tooltip: the hovered unit with its action, or an entry of the state.
function describeAt(side, frame, mouse, teams) {
  if (!side.units) return describeEntry(side, mouse)
  const { hovered } = side
  if (hovered < 0) return null
  const t = Math.floor(frame)
  const i = t * side.units + hovered
  const percent = (value) => `${Math.round(value * 100)} %`
  const parts = [`${teams[side.team[hovered]].name} ${side.labels[hovered]}, ${side.kind[hovered]}`]
  if (side.team[hovered] !== 2) {
    parts.push(side.arrays.alive[i] ? `health ${percent(side.arrays.health[i])}` : "dead")
    if (side.arrays.shield[i] > 0) parts.push(`shield ${percent(side.arrays.shield[i])}`)
  }
  const action = side.team[hovered] === 0 ? findAction(side, t, hovered) : null
  if (action) parts.push(action.name)
  return parts.join(" · ")
}

function describeEntry(side, mouse) {
  if (!side.box) return null
  const row = Math.floor(((mouse[1] - side.box.y) / side.box.height) * side.entries.length)
  const t = Math.floor(((mouse[0] - side.box.x) / side.box.width) * side.frames)
  if (row < 0 || row >= side.entries.length || t < 0 || t >= side.frames) return null
  return `${side.entries[row]} · t = ${t} · ${formatNumber(side.arrays.values[t * side.entries.length + row])}`
}

function findAction(side, t, agent) {
  if (!side.arrays.action || agent >= side.agents || t >= side.frames - 1) return null
  return side.actions[side.arrays.action[t * side.agents + agent]] || null
}

// Draw the actions of all sides: one row per agent, one cell per step.
function drawActions(ctx, box, sides, names, view, theme) {
  const visibleSides = sides.map((side, number) => ({ side, name: names[number] })).filter(({ side }) => side.agents)
  const agents = visibleSides.reduce((sum, { side }) => sum + side.agents, 0)
  if (!agents) return
  const gap = 6
  const row = Math.min(18, (box.height - gap * (visibleSides.length - 1)) / agents)
  const step = box.width / Math.max(1, view[1])
  let y = box.y
  ctx.save()
  ctx.font = `${Math.min(11, row)}px ${theme.font}`
  ctx.textBaseline = "middle"
  for (const { side, name } of visibleSides) {
    for (let agent = 0; agent < side.agents; agent += 1) {
      ctx.textAlign = "right"
      ctx.fillStyle = theme.soft
      if (row >= 9) ctx.fillText(`${name}${agent}`, box.x - 6, y + row / 2)
      ctx.textAlign = "center"
      for (let t = 0; t < side.frames - 1; t += 1) {
        const action = findAction(side, t, agent)
        if (!action || !action.color) continue
        ctx.fillStyle = action.color
        ctx.fillRect(box.x + t * step, y + 0.5, Math.max(1, step - 0.5), Math.max(1, row - 1))
        if (!action.mark || step < 9 || row < 9) continue
        ctx.fillStyle = "#ffffff"
        ctx.fillText(action.mark, box.x + (t + 0.5) * step, y + row / 2)
      }
      y += row
    }
    y += gap
  }
  ctx.restore()
}

// List the used groups of actions with their colors, one entry per color.
function listActionGroups(sides) {
  const groups = new Map()
  for (const side of sides) {
    const used = new Set(side.arrays.action || [])
    side.actions.forEach((action, number) => {
      if (action.color && used.has(number)) groups.set(action.group, action.color)
    })
  }
  return [...groups]
}
