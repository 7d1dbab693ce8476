// Tells the map of the same channel which point is selected and which paths lie over it.
export default function marker({ data }) {
  window.emtcMarks = window.emtcMarks || {}
  window.emtcMarks[data.channel] = data
  window.dispatchEvent(new CustomEvent("emtc-mark", { detail: data }))
}
