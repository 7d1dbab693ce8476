// Hears what a map says (`emtc-<what>` of a channel) and tells the part of the page in which it stands, and no other.
export default function listener({ data, parentElement, setTriggerValue }) {
  const { hears, channel } = data
  const said = (parentElement.said = parentElement.said || {})
  const listen = ({ type, detail }) => {
    const what = type.slice("emtc-".length)
    if (detail.channel !== channel || JSON.stringify(detail) === JSON.stringify(said[what])) return
    said[what] = detail
    setTriggerValue("heard", JSON.stringify(said))
  }
  for (const what of hears) window.addEventListener(`emtc-${what}`, listen)
  return () => hears.forEach((what) => window.removeEventListener(`emtc-${what}`, listen))
}
