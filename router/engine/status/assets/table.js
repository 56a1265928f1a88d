// A table of the page that is sorted by its heads and searched; it shows a part of its rows, so that 5,000 are quick.

import { count, element, refill, showAges } from "/assets/text.js";

const ROWS_SHOWN = 100;
const SEARCHED_FROM = 10;

export class SortedTable {
  // `columns`: {label, value(row) to sort and search by, cell(row) to show, isNumber, isWide}
  constructor(section, title, nothing, columns) {
    Object.assign(this, { section, title, nothing, columns, rows: [], sortedBy: 0, isDescending: false, first: 0 });
    this.search = element("input", { type: "search", placeholder: "Search", "aria-label": `Search: ${title}` });
    this.search.addEventListener("input", () => {
      this.first = 0;
      this.draw();
    });
    this.heads = columns.map((column, number) => this.head(column, number));
    this.caption = element("caption", { "aria-live": "polite" });
    this.body = element("tbody");
    this.back = element("button", { type: "button", onclick: () => this.turn(-ROWS_SHOWN) }, "Rows before");
    this.on = element("button", { type: "button", onclick: () => this.turn(ROWS_SHOWN) }, "Rows after");
    this.tools = element("div", { class: "tools" }, this.search, this.back, this.on);
    const table = element("table", {}, this.caption, element("thead", {}, element("tr", {}, ...this.heads)), this.body);
    const name = `${section.id}-title`;
    const scrolled = { class: "scrolled", role: "region", tabindex: "0", "aria-labelledby": name };
    this.scrolled = element("div", scrolled, table);
    this.empty = element("p", { class: "quiet" }, nothing);
    section.setAttribute("aria-labelledby", name);
    section.replaceChildren(element("h2", { id: name }, title), this.tools, this.empty, this.scrolled);
  }

  head(column, number) {
    const sort = () => {
      this.isDescending = this.sortedBy === number ? !this.isDescending : Boolean(column.isNumber);
      this.sortedBy = number;
      this.first = 0;
      this.draw();
    };
    const button = element("button", { type: "button", onclick: sort }, column.label);
    return element("th", { scope: "col", class: column.isNumber ? "number" : "" }, button);
  }

  turn(rows) {
    this.first += rows;
    this.draw();
  }

  show(rows, nothing = this.nothing) {
    this.rows = rows;
    this.empty.textContent = nothing;
    this.draw();
  }

  chosen() {
    const { value } = this.columns[this.sortedBy];
    const sign = this.isDescending ? -1 : 1;
    const wanted = this.search.value.trim().toLowerCase();
    let rows = this.rows;
    if (wanted) {
      const texts = this.columns.filter((column) => !column.isNumber);
      rows = rows.filter((row) => texts.some(({ value: of }) => String(of(row)).toLowerCase().includes(wanted)));
    }
    const compare = (one, other) => {
      const [a, b] = [value(one), value(other)];
      return a === b ? 0 : a < b ? -sign : sign;
    };
    return [...rows].sort(compare);
  }

  draw() {
    const rows = this.chosen();
    this.first = Math.max(0, Math.min(this.first, Math.floor((rows.length - 1) / ROWS_SHOWN) * ROWS_SHOWN));
    const shown = rows.slice(this.first, this.first + ROWS_SHOWN);
    this.heads.forEach((head, number) => {
      const order = this.isDescending ? "descending" : "ascending";
      head.setAttribute("aria-sort", number === this.sortedBy ? order : "none");
      const mark = number === this.sortedBy ? (this.isDescending ? " ▼" : " ▲") : "";
      head.firstChild.textContent = `${this.columns[number].label}${mark}`;
    });
    const part = shown.length < rows.length ? `rows ${count(this.first + 1)} to ${count(this.first + shown.length)} of ` : "";
    const found = rows.length < this.rows.length ? `${count(rows.length)} found among ` : "";
    const text = `${part}${found}${count(this.rows.length)} ${this.rows.length === 1 ? "row" : "rows"}`;
    // It is read aloud: the same text again would be, every second.
    if (this.caption.textContent !== text) this.caption.textContent = text;
    this.back.hidden = this.on.hidden = rows.length <= ROWS_SHOWN;
    this.back.disabled = this.first === 0;
    this.on.disabled = this.first + ROWS_SHOWN >= rows.length;
    this.tools.hidden = this.rows.length < SEARCHED_FROM;
    this.empty.hidden = this.rows.length > 0;
    this.scrolled.hidden = this.rows.length === 0;
    const line = (row) => {
      const cells = this.columns.map(({ cell, isNumber, isWide }) => {
        const kind = isNumber ? "number" : isWide ? "wide" : "";
        return element("td", { class: kind }, cell(row));
      });
      return element("tr", {}, ...cells);
    };
    refill(this.body, shown.map(line));
    showAges();
  }
}
