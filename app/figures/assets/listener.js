// Receives the events of a map (`emtc-<name>` with its channel) and sends them to one fragment of the page.
export default function listener({ data, parentElement, setTriggerValue }) {
  const { events: eventNames, channel } = data
  const lastEvents = (parentElement.lastEvents = parentElement.lastEvents || {})
  const listen = ({ type, detail }) => {
    const name = type.slice("emtc-".length)
    if (detail.channel !== channel || JSON.stringify(detail) === JSON.stringify(lastEvents[name])) return
    lastEvents[name] = detail
    setTriggerValue("events", JSON.stringify(lastEvents))
  }
  for (const name of eventNames) window.addEventListener(`emtc-${name}`, listen)
  return () => eventNames.forEach((name) => window.removeEventListener(`emtc-${name}`, listen))
}
