// Elements made of text and other elements. Text stays text: nothing here, or anywhere in the page, takes HTML.

const SVG = "http://www.w3.org/2000/svg";

/** The element of that id. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** An HTML element with attributes, and children that are elements or text. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** 1,234,567 */
export function grouped(number) {
  return number.toLocaleString("en");
}

/** 26.3 % */
export function percent(share, digits = 1) {
  return `${(100 * share).toFixed(digits)} %`;
}

/** "1 node", "2 nodes" */
export function counted(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}
