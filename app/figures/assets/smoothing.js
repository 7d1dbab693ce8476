// The slider that smooths the charts with the same `link`. The charts are redrawn in the browser while it is moved.
// The server gets the weight once the slider rests, for the address of the page.
export default function smoothing({ data, parentElement, setTriggerValue }) {
  const input = parentElement.querySelector("input")
  const output = parentElement.querySelector("output")
  const show = () => (output.textContent = Number(input.value) ? Number(input.value).toFixed(2) : "off")
  if (input.given !== data.weight) {
    input.given = data.weight
    input.value = data.weight
  }
  input.max = data.max
  parentElement.querySelector(".smoothing").title = data.help
  show()
  input.oninput = () => {
    show()
    const weight = Number(input.value)
    document.dispatchEvent(new CustomEvent("emtc-lab-smoothing", { detail: { link: data.link, weight } }))
    clearTimeout(input.timer)
    input.timer = setTimeout(() => input.isConnected && setTriggerValue("weight", weight), 400)
  }
}
