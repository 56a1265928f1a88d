// The graph of the configuration as SVG: in columns if there is room, else as a tree that is indented.

import { count, drawing, element, rate, shortened, visible } from "/assets/text.js";

const ROW = 56;
const HEIGHT = 40;
const GAP = 70;
const NARROWEST = 130;
const WIDEST = 250;
const INDENT = 14;
const LETTER = 7.2;
const TABLES_SHOWN = 12;

// Return the node with the tables of each sink below it: one is a node, several are one node that opens.
function withTables(node, tablesOf, opened) {
  const below = node.below.map((child) => withTables(child, tablesOf, opened));
  const tables = node.kind === "sink" ? tablesOf(node.key) : [];
  const asNode = (table) => ({ kind: "table", text: table.table, table, below: [] });
  if (tables.length === 1) below.unshift(asNode(tables[0]));
  if (tables.length > 1) {
    const isOpen = opened.has(node.key);
    const shown = isOpen ? tables.slice(0, TABLES_SHOWN).map(asNode) : [];
    const others = tables.length - shown.length;
    if (isOpen && others) shown.push({ kind: "table", text: `${count(others)} more: see Tables`, below: [] });
    const text = `${count(tables.length)} tables`;
    below.unshift({ kind: "tables", text, key: node.key, isOpen, tables, below: shown });
  }
  return { ...node, below };
}

// Give each node a row and a depth: in columns a parent stands next to the middle of its children.
function placed(node, depth, rows, inColumns, nodes) {
  const place = { node, depth, children: [] };
  nodes.push(place);
  if (!inColumns) place.row = rows.next++;
  for (const child of node.below) place.children.push(placed(child, depth + 1, rows, inColumns, nodes));
  if (inColumns) {
    const [first, last] = [place.children.at(0), place.children.at(-1)];
    place.row = first ? (first.row + last.row) / 2 : rows.next++;
  }
  return place;
}

const depthOf = (node) => 1 + Math.max(0, ...node.below.map(depthOf));

function edgeOf(from, to, inColumns, width) {
  const y = to.row * ROW + HEIGHT / 2;
  if (!inColumns) {
    const x = from.x + INDENT / 2;
    return `M${x} ${from.row * ROW + HEIGHT} V${y} H${to.x}`;
  }
  const start = from.x + width;
  const middle = start + GAP / 3;
  return `M${start} ${from.row * ROW + HEIGHT / 2} C${middle} ${from.row * ROW + HEIGHT / 2} ${start} ${y} ${middle} ${y} H${to.x}`;
}

const wholeName = (node) => node.text.split("\n").map(visible).join("\n").slice(0, 2000);

function box(place, width, rateText, inColumns, { isBroken, toggle, cut }) {
  const { node, x } = place;
  const blocked = (node.tables ?? [node.table]).filter((table) => table?.blocked).length;
  let trouble = isBroken(node) ? "needs a look" : "";
  if (blocked) trouble = node.table ? "cannot be written" : `${count(blocked)} cannot be written`;
  const letters = Math.floor((width - 16) / LETTER);
  const kind = [node.kind, trouble, inColumns ? "" : rateText];
  const mark = node.kind === "tables" ? (node.isOpen ? "▾ " : "▸ ") : "";
  const text = `${mark}${node.text.split("\n")[0]}`;
  if (shortened(text, letters) !== visible(text)) cut.push(element("li", {}, wholeName(node)));
  const attributes = { class: `node ${node.kind}${trouble ? " broken" : ""}` };
  if (node.kind === "tables") {
    Object.assign(attributes, { role: "button", tabindex: "0", "data-key": node.key, "aria-expanded": node.isOpen });
  }
  const made = drawing(
    "g",
    { ...attributes, transform: `translate(${x} ${place.row * ROW})` },
    drawing("title", {}, wholeName(node)),
    drawing("rect", { width, height: HEIGHT, rx: 4 }),
    drawing("text", { x: 8, y: 15, class: "kind" }, shortened(kind.filter(Boolean).join(" · "), letters * 1.2)),
    drawing("text", { x: 8, y: 31 }, shortened(text, letters)),
  );
  if (node.kind === "tables") {
    made.addEventListener("click", () => toggle(node.key));
    made.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      toggle(node.key);
    });
  }
  return made;
}

// Return the graph, and a list of the names that its boxes have no room for. `tablesOf` gives the tables of a sink, `rateOf` the rows a second that come to a node, if known.
export function drawGraph(root, room, { tablesOf, rateOf, isBroken, opened, toggle }) {
  const whole = withTables(root, tablesOf, opened);
  const depth = depthOf(whole);
  const inColumns = room >= depth * NARROWEST + (depth - 1) * GAP;
  const nodes = [];
  const rows = { next: 0 };
  placed(whole, 0, rows, inColumns, nodes);
  const ofColumn = Math.min(WIDEST, (room - (depth - 1) * GAP) / depth);
  const edges = [];
  const boxes = [];
  const cut = [];
  for (const place of nodes) place.x = place.depth * (inColumns ? ofColumn + GAP : INDENT);
  for (const place of nodes) {
    const width = inColumns ? ofColumn : room - place.x - 2;
    const perSecond = rateOf(place.node);
    const rateText = perSecond === undefined ? "" : rate(perSecond);
    for (const child of place.children) {
      edges.push(drawing("path", { class: "edge", d: edgeOf(place, child, inColumns, width) }));
    }
    if (inColumns && place.depth && rateText) {
      const at = { class: "rate", x: place.x - GAP / 3, y: place.row * ROW + HEIGHT / 2 - 5 };
      boxes.push(drawing("text", at, rateText));
    }
    boxes.push(box(place, width, rateText, inColumns, { isBroken, toggle, cut }));
  }
  const attributes = { role: "group", "aria-label": "Source, decoder, routes, sinks and tables" };
  const graph = drawing("svg", { ...attributes, width: room, height: rows.next * ROW }, ...edges, ...boxes);
  return cut.length ? [graph, element("ul", { class: "quiet", "aria-label": "Whole names" }, ...cut)] : [graph];
}
