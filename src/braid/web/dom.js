/** Small helpers for the page's elements. Text is always set as text, never as markup. */

/** @param {string} id @returns {any} */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return found;
}

/**
 * Make an element.
 * @param {string} tag
 * @param {Object<string, string | boolean | number>} attributes `class`, `text`, and others as they are
 * @param {Node[]} children
 * @returns {any}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = String(value);
    else if (typeof value === "boolean") element.toggleAttribute(name, value);
    else element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

/** Set a text only where it has changed, so that a selection in it survives. @param {Element} element */
export function setText(element, text) {
  if (element.textContent === text) return;
  const node = element.firstChild;
  const isGrown = element.childNodes.length === 1 && node?.nodeType === Node.TEXT_NODE;
  if (isGrown && text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else element.textContent = text;
}

/** Whether a box is scrolled to its end. @param {Element} box */
export function isAtEnd(box) {
  return box.scrollHeight - box.scrollTop - box.clientHeight < 40;
}

/** Give a file to the person. @param {string} name @param {Blob} blob */
export function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = make("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
