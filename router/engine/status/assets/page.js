// The page of a stream: it draws the snapshot that server-sent events bring, and asks for nothing else.

import { drawGraph } from "/assets/graph.js";
import { SortedTable } from "/assets/table.js";
import { age, count, drawing, duration, element, moment, now, rate, refill, seconds } from "/assets/text.js";
import { setClock, share, shortened, showAges, visible } from "/assets/text.js";

const RATE_SECONDS = 60;
const CURVE_POINTS = 60;
const BATCHES_SHOWN = 20;
const RETRY_MILLISECONDS = 10000;
const STATES = { starting: "● Starting", ended: "● Ended" };
const VERDICTS = { well: "✓ All is well", unknown: "● Not known yet", look: "▲ Needs a look", act: "■ Action needed" };
const FROM_LAKE = "counts are those of the lake and of its whole ledger";
const find = (id) => document.getElementById(id);
const isBroken = ({ kind, key }) => stream.findings.some((finding) => finding.places.includes(`${kind}/${key}`));
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// The snapshot, as far as events have brought it; then what the page itself keeps of it while it is open.
const stream = {};
const totals = [];
const lags = [];
const opened = new Set();
const openedBatches = new Set();
let showsAllBatches = false;

// The totals of a snapshot by what they count. Rates are what they have grown by from the end of one batch to that of
// another one: between two moments of a page there may be a whole batch more or less.
function totalsNow() {
  const found = { "records/read": stream.records.read, "records/decoded": stream.records.decoded };
  found["records/dead_letters"] = stream.records.dead_letters;
  for (const [route, counts] of Object.entries(stream.routes)) found[`route/${route}`] = counts.matched;
  for (const sink of stream.sinks) found[`sink/${sink.route}/${sink.sink}`] = sink.applied + sink.sending;
  for (const table of stream.tables) {
    const key = `sink/${table.target}`;
    found[key] = (found[key] ?? 0) + table.rows;
    found[`table/${table.table}`] = table.rows ?? undefined;
  }
  return found;
}

function keepTotals() {
  const newest = stream.batches[0];
  if (!newest || newest.ended === totals.at(-1)?.time) return;
  totals.push({ time: newest.ended, counts: totalsNow() });
  while (totals.length > 2 && totals[1].time <= newest.ended - RATE_SECONDS) totals.shift();
}

function growth(key) {
  const [first, last] = [totals[0], totals.at(-1)];
  if (totals.length < 2 || last.counts[key] === undefined) return undefined;
  if (now() - last.time > RATE_SECONDS) return 0;
  return Math.max(0, last.counts[key] - (first.counts[key] ?? 0)) / Math.max(0.001, last.time - first.time);
}

function rateOfNode({ kind, key, text }) {
  if (kind === "decoder") return growth("records/decoded");
  if (kind === "route") return growth(`route/${key}`);
  if (kind === "sink") return growth(`sink/${key}`);
  return kind === "table" ? growth(`table/${text}`) : undefined;
}

function showState() {
  const worst = stream.verdict;
  const isOver = ["unknown", "well"].includes(worst) && stream.state in STATES;
  const verdict = isOver ? STATES[stream.state] : VERDICTS[worst];
  find("state").className = isOver ? "" : worst;
  // It is read aloud when it changes, and only then.
  if (find("verdict").textContent !== verdict) find("verdict").textContent = verdict;
  // While the source does not answer, the number is that of before.
  const isBehind = stream.state === "running" && stream.lag !== null;
  const lag = isBehind ? `, ${count(stream.lag)} records behind` : "";
  const cause = stream.cause ? `: ${visible(stream.cause)}` : "";
  const hasSince = stream.since && stream.state !== "running";
  const since = hasSince ? ` since ${moment(stream.since)}` : "";
  find("words").textContent = `${visible(stream.query)}: ${stream.state}${since}${cause}${lag}`;
  find("name").textContent = visible(stream.query);
  document.title = `${verdict.slice(0, 1)} ${visible(stream.query)}: ${stream.state}`;
  const step = stream.step ? `At work: ${visible(stream.place)}; ` : "";
  refill(find("now"), stream.progress ? [`${step}last step `, age(stream.progress)] : []);
  const counts = stream.started ? `started ${moment(stream.started)}; counts begin then` : FROM_LAKE;
  find("about").textContent = `spark-event-router ${visible(stream.version)}; ${counts}. Times are in your zone.`;
}

function findingLine({ text, command }) {
  const line = element("li", {}, shortened(text, 1000));
  if (!command) return line;
  const copy = async ({ target }) => {
    await navigator.clipboard.writeText(command);
    target.textContent = "Copied";
  };
  const button = { type: "button", "data-key": command, "aria-label": `Copy: ${command}`, onclick: copy };
  // Browsers have a clipboard for pages of this machine, or by https.
  const tools = navigator.clipboard ? [element("button", button, "Copy")] : [];
  line.append(element("div", { class: "command" }, element("code", {}, visible(command)), ...tools));
  return line;
}

// A curve of values in time, the oldest first; screen readers get its ends in words.
function curve(values, words) {
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, number) => {
    return `${((100 * number) / (values.length - 1)).toFixed(2)},${(34 - (32 * value) / most).toFixed(2)}`;
  });
  const line = values.length > 1 ? [drawing("polyline", { class: "curve", points: points.join(" ") })] : [];
  return drawing("svg", { viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": words }, ...line);
}

function bars(values, words) {
  const most = Math.max(...values, 1e-9);
  const width = 100 / values.length;
  const made = values.map((value, number) => {
    const height = (34 * value) / most;
    return drawing("rect", { class: "bar", x: number * width, y: 36 - height, width: width * 0.8, height });
  });
  return drawing("svg", { viewBox: "0 0 100 36", preserveAspectRatio: "none", role: "img", "aria-label": words }, ...made);
}

function figure(title, value, picture, below) {
  const shown = element("p", { class: "value" }, value);
  return element("div", { class: "figure" }, element("h3", {}, title), shown, picture, element("p", { class: "quiet" }, ...below));
}

const sinceStart = () => (stream.started ? "since the start" : "in the whole ledger");
const secondsOf = (batch) => sum(Object.values(batch.seconds));

function showFigures() {
  const batches = stream.batches.slice(0, CURVE_POINTS).reverse();
  const newest = batches.at(-1);
  const speeds = batches.slice(1).map((batch, number) => batch.read / Math.max(0.001, batch.ended - batches[number].ended));
  const read = stream.records.read === undefined ? "–" : `${count(stream.records.read)} read ${sinceStart()}`;
  const speed = speeds.length ? rate(speeds.at(-1)) : "–";
  const times = batches.map(secondsOf);
  const steps = newest ? Object.entries(newest.seconds).sort((one, other) => other[1] - one[1]).slice(0, 2) : [];
  const longest = steps.map(([step, length]) => `${step} ${seconds(length)}`).join(", ");
  const asked = stream.partitions.map((partition) => partition.read).filter(Boolean);
  const dead = batches.map((batch) => batch.dead_letters);
  const ofRead = stream.records.read ? `of ${count(stream.records.read)} read ` : "";
  // The rows of the table below: one figure for one thing.
  const letters = stream.records.dead_letters === undefined ? "–" : count(sum(stream.dead_letters.map((row) => row.count)));
  refill(find("figures"), [
    figure("Events a second", speed, curve(speeds, `Events a second of the last ${speeds.length} batches`), [read]),
    figure(
      "Lag", stream.lag === null ? "–" : `${count(stream.lag)} records`, curve(lags, "Lag since this page was opened"),
      asked.length ? ["asked ", age(Math.min(...asked))] : ["not known"],
    ),
    freshness(),
    figure("Seconds a batch", newest ? seconds(times.at(-1)) : "–", curve(times, `Seconds of the last ${times.length} batches`), [longest || "no batch yet"]),
    figure("Dead letters", letters, curve(dead, `Dead letters of the last ${dead.length} batches`), [`${ofRead}${sinceStart()}`]),
  ]);
}

// How old records were when they were in their tables, from a histogram: the last two numbers are all, and the sum.
function freshness() {
  const title = "Freshness (median)";
  if (!stream.freshness) return figure(title, "–", bars([0], "not known"), ["not known before the first batch"]);
  const upTo = stream.freshness.recent.slice(0, -1);
  const all = upTo.at(-1);
  const newest = ["newest record ", age(stream.freshness.newest)];
  if (!all) return figure(title, "–", bars([0], "no record"), ["no record in 5 minutes; ", ...newest]);
  const within = (part) => {
    const place = upTo.findIndex((number) => number >= part * all);
    const bounds = stream.freshness_bounds;
    return place < bounds.length ? `≤ ${duration(bounds[place])}` : `> ${duration(bounds.at(-1))}`;
  };
  const each = upTo.map((number, place) => number - (upTo[place - 1] ?? 0));
  const below = [`half ${within(0.5)}, 99 % ${within(0.99)} of 5 minutes; `, ...newest];
  return figure(title, `${within(0.5)}`, bars(each, `Half ${within(0.5)}, 99 % ${within(0.99)}`), below);
}

function showGraph() {
  if (!stream.graph) return;
  const byTarget = new Map();
  for (const table of stream.tables) {
    if (!byTarget.has(table.target)) byTarget.set(table.target, []);
    byTarget.get(table.target).push(table);
  }
  for (const tables of byTarget.values()) tables.sort((one, other) => (other.rows ?? 0) - (one.rows ?? 0));
  const toggle = (key) => {
    if (!opened.delete(key)) opened.add(key);
    showGraph();
  };
  const tablesOf = (key) => byTarget.get(key) ?? [];
  const style = getComputedStyle(find("graph"));
  const room = find("graph").clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
  refill(find("graph"), drawGraph(stream.graph, room, { tablesOf, rateOf: rateOfNode, isBroken, opened, toggle }));
}

// What an empty table of a running stream says until that is known: after its first batch, or once files were read.
const notYet = (known = stream.batches.length) => (stream.started && !known ? "Not known yet." : undefined);
const ageOr = (time) => (time ? age(time) : "–");
const text = (label, value) => ({ label, value, cell: (row) => shortened(value(row) || "–") });
const wide = (label, value) => ({ ...text(label, value), isWide: true });
const number = (label, value) => ({ label, value, cell: (row) => count(value(row)), isNumber: true });
const time = (label, value) => ({ label, value: (row) => value(row) ?? 0, cell: (row) => ageOr(value(row)), isNumber: true });
const warning = (label, value) => ({
  label, value, isWide: true, cell: (row) => (value(row) ? element("span", { class: "look-at" }, `▲ ${shortened(value(row))}`) : "–"),
});

const tables = new SortedTable(find("tables"), "Tables", "No table has got rows yet.", [
  wide("Table", (row) => row.table),
  { ...number("Rows", (row) => row.rows ?? -1), cell: (row) => (row.rows === null ? "–" : count(row.rows)) },
  time("Got rows", (row) => row.committed),
  { ...number("Batch", (row) => row.batch), cell: (row) => (row.batch < 0 ? "–" : count(row.batch)) },
  warning("Cannot be written", (row) => row.blocked),
  text("Written by", (row) => row.target.replace(/^\//, "")),
  text("Committed by", (row) => row.committer ?? ""),
]);
const deadLetters = new SortedTable(find("dead-letters"), "Dead letters", "None.", [
  text("Stage", (row) => row.stage),
  { ...wide("Reason", (row) => row.reason ?? "other reasons"), cell: reason },
  number("Records", (row) => row.count),
  time("Last", (row) => row.last),
  text("Route and sink", (row) => [row.route, row.sink].filter(Boolean).join("/")),
]);
const fields = new SortedTable(find("fields"), "Fields that the schema lacks", "None.", [
  wide("Field", ([name]) => name),
  number("Events", ([, events]) => events),
  wide("What takes it", () => "added to the schema of decode; if that was inferred, a run with --refresh-schema"),
]);
const quarantine = new SortedTable(find("quarantine"), "Quarantine", "No rows are quarantined.", [
  wide("Table", (row) => row.table),
  text("Waits for", (row) => row.waits_for),
  number("Rows", (row) => row.rows),
  time("Oldest record", (row) => row.oldest),
  wide("Why", (row) => row.cause),
]);
const sinks = new SortedTable(find("sinks"), "Sinks that send or merge", "No sink sends or merges rows, or none has yet.", [
  wide("Sink", (row) => `${row.route}/${row.sink}`),
  { ...text("Circuit", (row) => (row.circuit_open ? "open: its API is unavailable" : "")), cell: circuit },
  { ...number("Limit used", (row) => row.limit_used ?? -1), cell: limit },
  text("Answers of the last minute", (row) => Object.entries(row.last_answers).filter(([, many]) => many).map(([kind, many]) => `${count(many)} ${kind}`).join(", ")),
  number("Rows that wait", (row) => row.backlog),
  time("Oldest of them", (row) => row.oldest),
  // Also those of a batch that has not ended.
  number("Sent", (row) => row.applied + row.sending),
  number("Dead", (row) => row.dead),
  number("Parked", (row) => row.parked),
  number("In doubt", (row) => row.in_doubt),
]);
const views = new SortedTable(find("views"), "Views", "None.", [
  wide("View", (row) => row.view),
  time("Refreshed", (row) => row.refreshed),
  number("Rows", (row) => row.rows),
  wide("Tables", (row) => (row.tables === 1 ? row.targets[0] : `${count(row.tables)} of ${row.into}`)),
  text("How", (row) => (row.way === "full" || !row.way ? row.way : `by change (${row.way})`)),
  { ...number("Took", (row) => row.seconds ?? -1), cell: (row) => (row.seconds === null ? "–" : seconds(row.seconds)) },
  warning("Cannot be refreshed", (row) => row.failed),
]);
const shares = (row) => row.trend.map(([events, violated]) => violated / Math.max(1, events));
const trend = (row) => {
  const words = `Share of the last ${row.trend.length}: ${shares(row).map(share).join(", ")}`;
  return row.trend.length ? element("div", { class: "trend" }, bars(shares(row), words)) : "–";
};
const expectations = new SortedTable(find("expectations"), "Expectations", "None.", [
  wide("Expectation", (row) => row.name),
  { ...number("Share", (row) => row.violated / Math.max(1, row.events)), cell: (row) => share(row.violated / Math.max(1, row.events)) },
  { ...number("Trend", (row) => shares(row).at(-1) ?? -1), cell: trend },
  number("Did not hold", (row) => row.violated),
  text("Of", (row) => row.of),
  time("Last", (row) => row.last),
  text("Otherwise", (row) => row.otherwise),
]);
const partitions = new SortedTable(find("partitions"), "Partitions of the source", "Not known, or the source has none.", [
  wide("Topic", (row) => row.topic),
  number("Partition", (row) => row.partition),
  { ...number("Lag, records", (row) => row.lag ?? -1), cell: (row) => (row.lag === null ? "–" : count(row.lag)) },
  time("Asked", (row) => row.read),
]);

// The reason, with records that it is about if the configuration has `ui: {samples: true}`.
function reason(row) {
  const line = ({ topic, partition, offset, value }) => element("code", { class: "sample" }, shortened(`${topic}/${partition}/${offset}: ${value}`));
  return element("div", {}, shortened(row.reason ?? "other reasons"), ...row.samples.map(line));
}

function circuit(row) {
  if (row.circuit_open === null) return "–";
  return row.circuit_open ? element("span", { class: "look-at" }, "▲ open: its API is unavailable") : "closed";
}

function limit(row) {
  return row.limit_used === null ? "–" : `${count(100 * row.limit_used)} %`;
}

function showBatches() {
  const shown = showsAllBatches ? stream.batches : stream.batches.slice(0, BATCHES_SHOWN);
  const lines = shown.map(batchLine);
  if (!lines.length) lines.push(element("p", { class: "quiet" }, "No batch has ended yet."));
  if (shown.length < stream.batches.length) {
    const more = () => {
      showsAllBatches = true;
      showBatches();
    };
    lines.push(element("button", { type: "button", onclick: more }, `Show all ${count(stream.batches.length)}`));
  }
  refill(find("batches"), lines);
}

function batchLine(batch) {
  const key = `batch ${batch.batch}`;
  const dead = batch.dead_letters ? `, ${count(batch.dead_letters)} dead letters` : "";
  const length = Object.keys(batch.seconds).length ? `, ${seconds(secondsOf(batch))}` : "";
  const line = `Batch ${count(batch.batch)}: ${count(batch.read)} records${length}${dead}, ${moment(batch.ended)}`;
  const made = element("details", {}, element("summary", { "data-key": key }, line));
  const fill = () => made.append(element("div", { class: "inside" }, balanceOf(batch), stepsOf(batch)));
  made.open = openedBatches.has(key);
  if (made.open) fill();
  made.addEventListener("toggle", () => {
    if (made.open) openedBatches.add(key);
    else openedBatches.delete(key);
    if (made.open && made.childElementCount === 1) fill();
  });
  return made;
}

function factsOf(title, facts) {
  const head = (name) => element("th", { scope: "row" }, visible(name));
  const rows = facts.map(([name, value]) => element("tr", {}, head(name), element("td", { class: "number" }, value)));
  return element("table", {}, element("caption", {}, title), element("tbody", {}, ...rows));
}

function balanceOf(batch) {
  const others = batch.read - batch.decoded - batch.failed;
  const facts = [["read", count(batch.read)], ["decoded", count(batch.decoded)], ["failed to decode", count(batch.failed)]];
  if (others) facts.push(["without an event", count(others)]);
  facts.push(["matched no route", count(batch.unmatched)], ["dead letters", count(batch.dead_letters)]);
  // The ledger has neither, nor the seconds of steps.
  if (batch.files) facts.push(["tables", count(batch.tables)], ["files", count(batch.files)]);
  return factsOf("What became of its records", facts);
}

function stepsOf(batch) {
  if (!Object.keys(batch.seconds).length) return "";
  return factsOf("Its steps", Object.entries(batch.seconds).map(([step, length]) => [step, seconds(length)]));
}

function showWarnings() {
  const lineOf = ({ at, level, message }) => element("li", {}, `${moment(at)} ${level}: ${shortened(message, 1000)}`);
  const lines = stream.warnings.map(lineOf);
  refill(find("warnings"), lines.length ? lines : [element("li", { class: "quiet" }, "None.")]);
}

// What is drawn, and the fields of the snapshot that it is drawn from.
const PARTS = [
  [showState, ["query", "state", "cause", "since", "lag", "verdict", "step", "progress"]],
  [() => refill(find("findings"), stream.findings.map(findingLine)), ["findings"]],
  [showFigures, ["batches", "records", "partitions", "lag", "freshness", "dead_letters"]],
  [() => fields.show(Object.entries(stream.unknown_fields), notYet()), ["unknown_fields", "batches"]],
  [showGraph, ["graph", "tables", "routes", "sinks", "records", "findings"]],
  [() => tables.show(stream.tables, notYet()), ["tables", "batches"]],
  [() => deadLetters.show(stream.dead_letters, notYet()), ["dead_letters", "batches"]],
  [() => quarantine.show(stream.quarantined, notYet(stream.read.quarantine)), ["quarantined", "read"]],
  [() => sinks.show(stream.sinks, notYet(stream.read.outboxes)), ["sinks", "read"]],
  [() => views.show(stream.views), ["views"]],
  [() => expectations.show(stream.expectations), ["expectations"]],
  [() => partitions.show(stream.partitions), ["partitions"]],
  [showBatches, ["batches"]],
  [showWarnings, ["warnings"]],
];

function receive(event) {
  const changes = JSON.parse(event.data);
  Object.assign(stream, changes);
  setClock(changes.now);
  if (stream.lag !== null) lags.push(stream.lag);
  if (lags.length > CURVE_POINTS) lags.shift();
  keepTotals();
  for (const [show, fields] of PARTS) {
    if (fields.some((field) => field in changes)) show();
  }
  const source = stream.started ? "the stream as it is now" : "what the lake says, read again and again";
  showConnection(`Connected: this page shows ${source}.`, false);
  showAges();
}

function showConnection(words, isLost) {
  const shown = find("connection");
  if (shown.textContent !== words) shown.textContent = words;
  shown.className = isLost ? "lost" : "";
}

function connect() {
  const events = new EventSource("/api/events");
  events.addEventListener("message", receive);
  events.addEventListener("error", () => {
    const last = stream.now ? ` This is how it was at ${moment(stream.now)}.` : "";
    showConnection(`▲ Not connected: the stream has ended, cannot be reached, or too many pages are open.${last}`, true);
    // After an answer that is no stream of events, such as 401 or 503, a browser does not try again by itself.
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_MILLISECONDS);
  });
}

connect();
setInterval(showAges, 1000);
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width || !stream.graph) return;
  width = window.innerWidth;
  showGraph();
});
