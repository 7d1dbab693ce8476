// Says once that something newer is in the database; the server then redraws the charts and nothing else.
export default function pulse({ data, parentElement, setTriggerValue }) {
  if (data.version === data.drawn || parentElement.asked === data.version) return
  parentElement.asked = data.version
  setTriggerValue("news", data.version)
}
