// Creates and updates elements. Invariant: data from a server is set as text or as a property, never as markup.
// An element that did not change is not touched, so that focus, scroll position and selection stay.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element. `props`: `class`, `text`, `on` (listeners), `hidden` and other properties by name, attributes in `attrs`. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class") node.className = value;
    else if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (name === "attrs") for (const [key, attribute] of Object.entries(value)) node.setAttribute(key, attribute);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

export function svg(tag, attrs = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attrs)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** An icon of index.html, hidden from screen readers. */
export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true", viewBox: "0 0 16 16" }, svg("use", { href: `#i-${name}` }));
}

export function setIcon(node, name) {
  setAttr(node.firstElementChild, "href", `#i-${name}`);
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttr(node, name, value) {
  if (value === null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** Set a property that is cheap to read: `hidden`, `disabled`, `title`, `className`. */
export function setProp(node, name, value) {
  if (node[name] !== value) node[name] = value;
}

export function setVar(node, name, value) {
  if (node.style.getPropertyValue(name) !== value) node.style.setProperty(name, value);
}

/** A list that shows items by their keys: nodes are created, updated, moved and removed, but never created twice. */
export class Keyed {
  constructor(parent, create, update) {
    Object.assign(this, { parent, create, update, nodes: new Map() });
  }

  /** With `held`, existing nodes keep their order (the user is busy with them). */
  set(items, keyOf, held = false) {
    const { parent, nodes } = this;
    const wanted = new Set();
    const order = [];
    for (const item of items) {
      const key = keyOf(item);
      if (wanted.has(key)) continue;
      wanted.add(key);
      let node = nodes.get(key);
      if (!node) {
        node = this.create(item);
        nodes.set(key, node);
      }
      this.update(node, item);
      order.push(node);
    }
    for (const [key, node] of nodes) {
      if (wanted.has(key)) continue;
      node.remove();
      nodes.delete(key);
    }
    let at = parent.firstElementChild;
    for (const node of order) {
      if (node === at) at = at.nextElementSibling;
      else if (!node.parentNode) parent.insertBefore(node, at);
      else if (!held) move(parent, node, at);
    }
  }
}

function move(parent, node, before) {
  // moveBefore keeps focus and running transitions, in browsers that have it.
  if (parent.moveBefore) parent.moveBefore(node, before);
  else parent.insertBefore(node, before);
}

/** Whether the user is busy with the content of a node: the pointer, the focus or a selection is inside it. */
export function busy(node) {
  if (node.matches(":hover") || node.contains(document.activeElement)) return true;
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.anchorNode && node.contains(selection.anchorNode));
}

/** Copy text to the clipboard. If the browser forbids that (a page neither on loopback nor with TLS), copy it by a selection. */
export async function copy(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Denied: copying by a selection may still be allowed.
    }
  }
  const area = el("textarea", { class: "offscreen", value: text });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

export function copyButton(textOf, label = "Copy") {
  const words = el("span", { text: label });
  const button = el("button", { class: "quiet copy", type: "button" }, icon("copy"), words);
  button.addEventListener("click", async () => {
    setText(words, (await copy(textOf())) ? "Copied" : "Select and copy by hand");
    setTimeout(() => setText(words, label), 1500);
  });
  return button;
}
