// The marker shapes of lines, for charts and for the list of runs.
const CORNERS = { square: [4, 45], diamond: [4, 0], "triangle-up": [3, 0], "triangle-down": [3, 180], pentagon: [5, 0], hexagon: [6, 0] }
const ARMS = { cross: 0, x: 45 }

// Draw one of the marker shapes of `app.figures.theme`, filled with the current color.
function drawMarker(ctx, marker, x, y, size) {
  ctx.beginPath()
  if (CORNERS[marker]) {
    const [corners, turn] = CORNERS[marker]
    outlineMarker(ctx, x, y, corners, turn, () => size * 1.15)
  } else if (marker === "star") {
    outlineMarker(ctx, x, y, 10, 0, (corner) => (corner % 2 ? 0.5 : 1.35) * size)
  } else if (marker in ARMS) {
    const arm = [[1, 3], [1, 1], [3, 1], [3, -1], [1, -1], [1, -3], [-1, -3], [-1, -1], [-3, -1], [-3, 1], [-1, 1], [-1, 3]]
    const turn = (ARMS[marker] * Math.PI) / 180
    for (const [u, v] of arm) {
      const across = (u * Math.cos(turn) - v * Math.sin(turn)) * 0.4 * size
      ctx.lineTo(x + across, y + (u * Math.sin(turn) + v * Math.cos(turn)) * 0.4 * size)
    }
  } else {
    ctx.arc(x, y, size, 0, 7)
  }
  ctx.closePath()
  ctx.fill()
}

function outlineMarker(ctx, x, y, corners, turn, radius) {
  for (let corner = 0; corner < corners; corner += 1) {
    const angle = ((turn - 90) * Math.PI) / 180 + (corner * 2 * Math.PI) / corners
    ctx.lineTo(x + radius(corner) * Math.cos(angle), y + radius(corner) * Math.sin(angle))
  }
}
