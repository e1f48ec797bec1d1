// Gantt charts: their bars, the axes above them, a filter of rows and bars, zoom, and texts at the pointer.

const NEAR_PX = 4; // a bar so near to the pointer is meant, as many are narrower
const COUNT_HEIGHT = 0.8, COUNT_BOTTOM = 0.9;

for (const gantt of document.querySelectorAll(".gantt")) {
  const place = gantt.querySelector(".gantt-bars .chart");
  whenDrawn[place.id] = (chart) => drawGantt(gantt, place, chart, charts[gantt.querySelector(".gantt-axes .chart").id]);
}

function drawGantt(gantt, place, chart, axes) {
  const data = JSON.parse(gantt.querySelector("script.gantt-data").textContent);
  const rows = [...gantt.querySelectorAll(".gantt-row")];
  const tip = gantt.querySelector(".gantt-tip"), status = gantt.querySelector("[role=status]");
  const range = chart.x_range, number = data.left.length;
  const [bars, failed, outlines, marks] = chart.renderers.map((renderer) => renderer.data_source);
  let slots = rows.map((_, i) => i); // by row: its place from above, NaN if it is hidden
  let shownRows = slots; // by place: its row
  let isMatch = () => true;
  let byFunction = false;

  function draw() {
    const columns = {left: [], right: [], top: [], bottom: [], colour: [], alpha: []}, shown = [];
    for (let i = 0; i < number; i++) {
      if (Number.isNaN(slots[data.row[i]])) continue;
      shown.push(i);
      const [top, bottom] = extent(data, i), slot = slots[data.row[i]];
      const isFunction = byFunction && data.level[i] < 0 && data.kind[i] >= FINISHED_KIND;
      columns.left.push(data.left[i]);
      columns.right.push(data.right[i]);
      columns.top.push(slot + top);
      columns.bottom.push(slot + bottom);
      columns.colour.push(isFunction ? data.colours[data.name[i]] : data.kindColours[data.kind[i]]);
      columns.alpha.push(isMatch(i) ? 0.45 + 0.55 * data.busy[i] : 0.12);
    }
    bars.data = columns;
    const only = (isWanted) => Object.fromEntries(
      EDGES.map((edge) => [edge, columns[edge].filter((_, at) => isWanted(shown[at]) && isMatch(shown[at]))]),
    );
    failed.data = only((i) => data.kind[i] >= STUCK_KIND);
    outlines.data = only((i) => data.critical[i]);
    const waits = data.marks.filter((mark) => !Number.isNaN(slots[mark.row]));
    marks.data = {
      x: waits.map((mark) => mark.at), from: waits.map((mark) => mark.from), y: waits.map((mark) => slots[mark.row] + 0.5),
    };
  }

  function filter(words) {
    const found = new Set(), matching = new Set();
    const places = rows.map((row) => row.title.toLowerCase().includes(words));
    const texts = data.names.map((name) => name.toLowerCase().includes(words));
    const notes = data.notes.map((note) => note.toLowerCase().includes(words));
    for (let i = 0; i < number; i++) {
      if (places[data.row[i]] || texts[data.name[i]] || notes[data.note[i]]) {
        matching.add(i);
        found.add(data.row[i]);
      }
    }
    isMatch = (i) => matching.has(i);
    let heading = -1;
    rows.forEach((row, i) => {
      const isHeading = row.classList.contains("heading");
      if (isHeading) heading = i;
      else if (places[i] || found.has(i)) found.add(i).add(heading);
    });
    shownRows = rows.map((_, i) => i).filter((i) => words === "" || found.has(i));
    slots = rows.map(() => NaN);
    shownRows.forEach((row, slot) => { slots[row] = slot; });
    rows.forEach((row, i) => { row.hidden = Number.isNaN(slots[i]); });
    const isTask = (i) => data.level[i] < 0 && data.kind[i] >= FINISHED_KIND;
    const tasks = [...matching].reduce((sum, i) => sum + (isTask(i) ? data.count[i] : 0), 0);
    const lanes = shownRows.filter((i) => !rows[i].classList.contains("heading")).length;
    status.textContent = words && `Rows: ${lanes}, tasks: ${tasks.toLocaleString("en")}`;
    chart.y_range.setv({start: Math.max(1, shownRows.length), end: 0});
    chart.height = Math.max(1, shownRows.length) * data.rowPx;
    draw();
  }

  function zoom(factor) { // around the middle, or the end if that is in view
    const width = (range.end - range.start) * factor, isAtEnd = range.end >= data.span * 0.999;
    const middle = isAtEnd ? data.span - width / 2 : (range.start + range.end) / 2;
    const start = Math.max(0, Math.min(middle - width / 2, data.span - width));
    range.setv({start, end: Math.min(data.span, start + width)});
  }

  function showTimes() {
    const ticks = Math.max(2, Math.round(place.clientWidth / TICK_PX));
    for (const one of [...axes.above, ...chart.below]) one.ticker.desired_num_ticks = ticks;
    const ms = (seconds) => (data.began + data.offset + seconds) * 1000;
    axes.x_range.setv({start: range.start, end: range.end});
    axes.extra_x_ranges.clock.setv({start: ms(range.start), end: ms(range.end)});
  }

  function at(event) { // the mark or bar at the pointer: {lines, stack}, or null
    const box = place.getBoundingClientRect(), px = (range.end - range.start) / box.width;
    const x = range.start + (event.clientX - box.left) * px;
    const row = shownRows[Math.floor((event.clientY - box.top) / data.rowPx)];
    const mark = data.marks.find((one) => one.row === row && Math.abs(one.at - x) < 7 * px);
    if (mark) return {lines: ["Waits now:", ...mark.texts], stack: mark.stack};
    let best = -1, nearest = NEAR_PX * px;
    for (let i = 0; i < number; i++) {
      if (data.row[i] !== row) continue;
      const distance = Math.max(data.left[i] - x, x - data.right[i], 0);
      if (distance < nearest || (distance === nearest && distance === 0)) [best, nearest] = [i, distance];
    }
    return best < 0 ? null : {lines: ganttText(data, best, rows[row].title), stack: data.stacks[data.stack[best]]};
  }

  function showTip(event, found) {
    tip.hidden = !found;
    place.style.cursor = found?.stack ? "pointer" : "";
    if (!found) return;
    const lines = found.stack ? [...found.lines, "Click: show its stack"] : found.lines;
    tip.replaceChildren(...lines.map((line) => Object.assign(document.createElement("div"), {textContent: line})));
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18, above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${below + tip.offsetHeight > window.innerHeight && above > 0 ? above : below}px`;
  }

  let down = null, tapped = "";
  place.addEventListener("pointerdown", (event) => { down = event; }, true);
  place.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") showTip(event, at(event)); }, true);
  place.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") tip.hidden = true; });
  place.addEventListener("click", (event) => {
    if (down && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) > NEAR_PX) return;
    const found = at(event), text = found ? found.lines.join() : "";
    const isSecond = down?.pointerType !== "touch" || text === tapped; // the first tap shows the text
    tapped = text;
    showTip(event, found);
    if (found?.stack && isSecond) {
      tip.hidden = true;
      goTo(found.stack);
    }
  }, true);
  window.addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});

  gantt.querySelector("input[type=search]").addEventListener("input", (event) => filter(event.target.value.toLowerCase()));
  gantt.querySelector(".zoom-in").addEventListener("click", () => zoom(1 / 2));
  gantt.querySelector(".zoom-out").addEventListener("click", () => zoom(2));
  gantt.querySelector(".reset").addEventListener("click", () => range.setv({start: 0, end: data.span}));
  for (const choice of gantt.querySelectorAll("[value=state], [value=function]")) {
    choice.addEventListener("change", () => {
      byFunction = choice.value === "function";
      gantt.querySelector(".by-state").hidden = byFunction;
      gantt.querySelector(".by-function").hidden = !byFunction;
      draw();
    });
  }
  const drags = {zoom: "BoxZoomTool", pan: "PanTool"};
  function drag(value) {
    for (const tool of chart.toolbar.tools) {
      if (Object.values(drags).includes(tool.type)) tool.active = tool.type === drags[value];
    }
  }
  for (const choice of gantt.querySelectorAll("[value=zoom], [value=pan], [value=none]")) {
    choice.addEventListener("change", () => drag(choice.value));
    if (choice.value === "none" && window.matchMedia("(pointer: coarse)").matches) choice.click();
  }
  range.change.connect(showTimes);
  chart.properties.inner_width.change.connect(showTimes);
  draw();
  showTimes();
}

const FINISHED_KIND = 5, STUCK_KIND = 8, EDGES = ["left", "right", "top", "bottom"];
const TICK_PX = 80;

function extent(data, i) { // where a bar begins and ends within its row, from above
  if (data.level[i] >= 0) return [COUNT_BOTTOM - COUNT_HEIGHT * Math.max(0.1, data.level[i]), COUNT_BOTTOM];
  return data.kind[i] < FINISHED_KIND ? [0.4, 0.6] : [0.1, 0.9];
}

function ganttText(data, i, row) { // what a bar is, in lines
  const clock = (at) => new Date((data.began + data.offset + at) * 1000).toISOString().slice(11, 23);
  const lasts = shortDuration(data.right[i] - data.left[i]), words = data.words[data.kind[i]];
  const when = `${data.left[i].toFixed(3)} to ${data.right[i].toFixed(3)} s (${clock(data.left[i])})`;
  const note = data.notes[data.note[i]], lines = note ? note.split("\n") : [];
  if (data.level[i] >= 0) return [`${data.count[i]} on average ${countWords(words)}`, when, row, ...lines];
  if (data.count[i] > 1) {
    const busy = `busy ${Math.round(100 * data.busy[i])} % of ${lasts}`;
    return [`${data.count[i].toLocaleString("en")} tasks ${words}, ${busy}`, ...lines, when, row];
  }
  const name = data.names[data.name[i]];
  const state = {running: `running for ${lasts}`, finished: `finished after ${lasts}`, failed: `failed after ${lasts}`};
  const task = data.task[i] + data.endings[data.ending[i]];
  return [name, state[words] ?? `${words}: ${lasts}`, ...lines, when, row, `task ${task}`];
}

function countWords(words) {
  return words.replace("waits for its worker", "wait for workers").replace("waits for its actor", "wait for the actor")
    .replace("waits", "wait").replace("running", "run");
}
