// Texts of the page: numbers with their units, times in the reader's zone, and names that may be hostile.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const UNITS = [["days", 86400], ["h", 3600], ["min", 60]];
const LONGEST = 300;
// Control characters, and those that turn the direction of a text or have no width.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

// The clock of the stream's machine: that of the reader may be wrong.
let ahead = 0;
export const now = () => Date.now() / 1000 + ahead;
export function setClock(time) {
  ahead = time - Date.now() / 1000;
}

export const count = (number) => whole.format(number);
export const seconds = (number) => `${short.format(number)} s`;
export const share = (part) => `${short.format(100 * part)} %`;
export const moment = (time) => clock.format(new Date(time * 1000));
export const rate = (number) => `${number < 10 ? short.format(number) : whole.format(number)}/s`;

export function duration(length) {
  for (const [unit, size] of UNITS) {
    if (length >= 2 * size) return `${whole.format(length / size)} ${unit}`;
  }
  return `${whole.format(Math.max(0, length))} s`;
}

// Show what would be invisible, such as a control character, as an escape.
export function visible(text) {
  return String(text).replace(UNSEEN, (character) => {
    return `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}

export function shortened(text, length = LONGEST) {
  const characters = Array.from(visible(text).slice(0, 4 * length));
  return characters.length <= length ? characters.join("") : `${characters.slice(0, length - 1).join("")}…`;
}

// Make an element. Whatever comes from the stream is a text of it: nothing here is ever parsed as HTML.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (attribute === "onclick") made.addEventListener("click", value);
    else made.setAttribute(attribute, value);
  }
  made.append(...children);
  return made;
}

export function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

// Put new children into an element; what had the focus, by its `data-key`, has it again.
export function refill(parent, children) {
  const key = parent.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  parent.replaceChildren(...children);
  if (key === undefined) return;
  for (const child of parent.querySelectorAll("[data-key]")) {
    if (child.dataset.key === key) child.focus({ preventScroll: true });
  }
}

// An age that keeps counting: `showAges` renews it every second.
export function age(time, words = "ago") {
  return element("time", { datetime: new Date(time * 1000).toISOString(), title: moment(time), "data-age": words });
}

export function showAges() {
  for (const shown of document.querySelectorAll("time[data-age]")) {
    shown.textContent = `${duration(now() - Date.parse(shown.dateTime) / 1000)} ${shown.dataset.age}`;
  }
}
