// Sends the selected point and the paths to the map with the same channel.
export default function marker({ data }) {
  window.emtcMarks = window.emtcMarks || {}
  window.emtcMarks[data.channel] = data
  window.dispatchEvent(new CustomEvent("emtc-mark", { detail: data }))
}
