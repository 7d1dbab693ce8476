// Saves a file of the server. The first line of the data is JSON: number, name and type. The content follows.
export default function file({ data, setTriggerValue }) {
  const end = data.indexOf(10)
  const { number, name, type } = JSON.parse(new TextDecoder().decode(data.subarray(0, end)))
  const saved = (window.emtcLabSavedFiles ||= new Set())
  if (saved.has(number)) return // this component is drawn again
  saved.add(number)
  const link = document.createElement("a")
  link.href = URL.createObjectURL(new Blob([data.subarray(end + 1)], { type }))
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
  setTriggerValue("saved", number)
}
