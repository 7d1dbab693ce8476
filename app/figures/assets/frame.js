// Reports the step that the player shows when this element is drawn, once, if the server has another one.
export default function frame({ data, parentElement, setStateValue }) {
  const t = window.emtcCursor ?? data.t
  if (t === data.t || parentElement.reported !== undefined) return
  parentElement.reported = t
  setStateValue("t", t)
}
