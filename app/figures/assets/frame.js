// Reports the step that the player shows, once each time this element is drawn.
export default function frame({ parentElement, setStateValue }) {
  const t = window.emtcCursor ?? null
  if (t === null || parentElement.reported !== undefined) return
  parentElement.reported = t
  setStateValue("t", t)
}
