"use strict";
// Shared by all pages. Names and sentences become text nodes, never markup.
const data = JSON.parse(document.getElementById("data")?.textContent ?? "null");

function byId(id) { return document.getElementById(id); }

// Append an element, inside an SVG one of its namespace, and return it.
function add(parent, name, text, attributes) {
  const svg = parent.namespaceURI.endsWith("svg") || name === "svg";
  const element = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", name)
    : document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  return parent.appendChild(element);
}

// The key of an event; none with Alt, Ctrl or Meta, which are the browser's.
function plainKey({key, altKey, ctrlKey, metaKey}) {
  return altKey || ctrlKey || metaKey ? "" : key;
}

// The colour of a run or a system.
function colour(index) { return `var(--c${index % 7})`; }

// Add buttons of which one at a time is pressed.
function addChoices(parent, labels, chosen, choose) {
  const buttons = labels.map((label, index) => {
    const pressed = String(index === chosen);
    const button = add(parent, "button", label, {type: "button", "aria-pressed": pressed});
    button.addEventListener("click", () => {
      buttons.forEach(other => other.setAttribute("aria-pressed", String(other === button)));
      choose(index);
    });
    return button;
  });
}
