// Asks for the content of an open box. The browser draws the inside of a popover, and so this component, only while the
// popover is open.
export default function box({ data, parentElement, setTriggerValue }) {
  if (!data.isDrawn && !parentElement.isAsked) setTriggerValue("opened", true)
  parentElement.isAsked = !data.isDrawn
}
