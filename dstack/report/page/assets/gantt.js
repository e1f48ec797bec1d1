// The timeline: bars on rows below two axes of time, with zoom, a filter, texts at the pointer, and sums of a range.

const GANTT_PX = 18, AXIS_PX = 26, NEAR_PX = 4; // a bar so near to the pointer is meant, as many are narrower
const MOST_PIXELS = 16e6; // some browsers draw no larger canvas
const FINISHED_KIND = 5, STUCK_KIND = 8, FAILED_KIND = 9;
const MOST_ARROWS = 200, MOST_FUNCTIONS = 10, WIDEST_ZOOM = 1e-6;
const CLOCK_STEPS = [
  ...[1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1].flatMap((unit) => [unit, 2 * unit, 5 * unit]),
  ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800],
];

for (const gantt of document.querySelectorAll(".gantt")) drawGantt(gantt);

function drawGantt(gantt) {
  const find = (selector) => gantt.querySelector(selector);
  const data = JSON.parse(find("script.gantt-data").textContent), number = data.left.length;
  const rows = [...gantt.querySelectorAll(".gantt-row")], isLane = rows.map((row) => row.classList.contains("lane"));
  const place = find(".gantt-bars canvas"), axes = find(".gantt-axes canvas");
  const tip = find(".gantt-tip"), sum = find(".gantt-sum");
  const isTask = (i) => data.count[i] > 0 && data.level[i] < 0 && data.kind[i] >= FINISHED_KIND && isLane[data.row[i]];
  const barsOf = rows.map(() => []), callees = new Map();
  for (let i = 0; i < number; i++) {
    barsOf[data.row[i]].push(i);
    const caller = data.caller[i];
    if (caller < 0 || data.kind[i] < FINISHED_KIND) continue;
    if (!callees.has(caller)) callees.set(caller, []);
    callees.get(caller).push(i);
  }
  let view = {start: 0, end: data.span}, range = null; // what is shown, and {from, to, first, last} if chosen
  let shownRows = rows.map((_, i) => i), slots = shownRows; // by place its row, and by row its place, NaN if hidden
  let isMatch = () => true, byFunction = false;
  let hovered = -1, pinned = -1; // bars whose callers and callees are shown

  // Drawing

  let isDue = false;
  function redraw() {
    if (!isDue) requestAnimationFrame(() => { isDue = false; draw(); });
    isDue = true;
  }

  function draw() {
    const style = getComputedStyle(gantt), colour = (name) => style.getPropertyValue(name);
    const width = place.parentElement.clientWidth, scale = width / (view.end - view.start);
    const x = (time) => (time - view.start) * scale, y = (row) => (slots[row] + 0.5) * GANTT_PX;
    const font = `11px ${style.fontFamily}`;
    const ticks = drawAxes(context2d(axes, width, 2 * AXIS_PX, colour, font), width, colour);
    const pen = context2d(place, width, Math.max(1, shownRows.length) * GANTT_PX, colour, font);
    pen.fillStyle = colour("--line");
    for (const time of ticks) pen.fillRect(Math.round(x(time)), 0, 1, place.clientHeight);
    drawBars(pen, x, width, colour);
    drawMarks(pen, x, y, colour);
    drawArrows(pen, x, y, colour);
    if (range) drawRange(pen, x, colour);
    Object.assign(place.dataset, view);
  }

  function drawAxes(pen, width, colour) { // returns the times of the lower axis
    const lines = [[data.began + data.offset, clockText], [0, elapsedText]];
    return lines.map(([origin, text], line) => {
      const lasts = view.end - view.start, widest = pen.measureText(text(origin + view.end, lasts / 20)).width + 24;
      const least = (lasts * widest) / width, step = CLOCK_STEPS.find((one) => one >= least) ?? least;
      const bottom = (line + 1) * AXIS_PX, found = [];
      for (let n = Math.ceil((origin + view.start) / step); n * step <= origin + view.end; n++) {
        found.push(n * step - origin);
      }
      pen.fillStyle = colour("--text");
      for (const time of found) {
        const label = text(origin + time, step), half = pen.measureText(label).width / 2;
        const at = ((time - view.start) / lasts) * width;
        pen.fillText(label, Math.max(2, Math.min(at - half, width - 2 * half - 2)), bottom - 10);
        pen.fillRect(Math.round(at), bottom - 5, 1, 5);
      }
      return found;
    })[1];
  }

  function drawBars(pen, x, width, colour) {
    const ofKind = [...Array(FAILED_KIND + 1).keys()].map((kind) => colour(`--kind-${kind}`));
    const ofName = data.colours.map((number) => colour(`--function-${number}`));
    const hatch = ganttHatch(pen, colour("--hatch"));
    const outline = colour("--text"), dark = colour("--on-bar"), light = colour("--on-stuck");
    for (const row of shownRows) {
      for (const i of barsOf[row]) {
        if (data.right[i] < view.start || data.left[i] > view.end) continue;
        const left = Math.max(-9, x(data.left[i])), wide = Math.max(1, Math.min(width + 9, x(data.right[i])) - left);
        const [above, below] = ganttExtent(data, i);
        const top = (slots[row] + above) * GANTT_PX, high = (below - above) * GANTT_PX;
        const kind = data.kind[i], isRun = data.level[i] < 0 && kind >= FINISHED_KIND;
        const isFunction = byFunction && isRun && kind !== STUCK_KIND;
        pen.globalAlpha = isMatch(i) ? 0.45 + 0.55 * data.busy[i] : 0.12;
        pen.fillStyle = isFunction ? ofName[data.name[i]] : ofKind[kind];
        pen.fillRect(left, top, wide, high);
        pen.globalAlpha = 1;
        if (!isMatch(i)) continue;
        if (kind === FAILED_KIND) {
          pen.fillStyle = hatch;
          pen.fillRect(left, top, wide, high);
        }
        if (data.critical[i]) {
          pen.strokeStyle = outline;
          pen.lineWidth = Math.min(2, wide);
          pen.strokeRect(left + 1, top + 1, Math.max(0, wide - 2), high - 2);
        }
        if (isRun && data.busy[i] === 1 && wide > 45) {
          const from = Math.max(0, left) + 4, fits = Math.floor((Math.min(width, left + wide) - from - 2) / 6.3);
          const name = data.names[data.name[i]], text = name.length > fits ? `${name.slice(0, fits - 1)}…` : name;
          pen.fillStyle = kind === STUCK_KIND ? light : dark;
          if (fits > 3) pen.fillText(text, from, top + high - 3.5);
        }
      }
    }
  }

  function drawMarks(pen, x, y, colour) {
    for (const mark of data.marks.filter((one) => !Number.isNaN(slots[one.row]))) {
      const at = x(mark.at), middle = y(mark.row);
      pen.fillStyle = colour(mark.stuck ? `--kind-${STUCK_KIND}` : "--warn");
      pen.fillRect(x(mark.from), middle - 1.5, at - x(mark.from), 3);
      pen.strokeStyle = colour("--background");
      pen.lineWidth = 1.5;
      pen.beginPath();
      for (const [right, down] of [[0, -6], [6, 0], [0, 6], [-6, 0]]) pen.lineTo(at + right, middle + down);
      pen.closePath();
      pen.fill();
      pen.stroke();
    }
  }

  function drawArrows(pen, x, y, colour) { // from the caller of a bar, and to its callees, when they were called
    const bar = hovered >= 0 ? hovered : pinned;
    if (bar < 0) return;
    const calls = [[data.caller[bar], bar], ...(callees.get(bar) ?? []).map((i) => [bar, i])];
    const shown = calls.filter((ends) => ends.every((i) => i >= 0 && !Number.isNaN(slots[data.row[i]])));
    const lines = new Path2D(), heads = new Path2D();
    for (const [caller, callee] of shown.slice(0, MOST_ARROWS)) {
      const called = data.left[callee] - data.lead[callee];
      const from = [x(Math.min(Math.max(called, data.left[caller]), data.right[caller])), y(data.row[caller])];
      const to = [x(data.left[callee]), y(data.row[callee])], bend = Math.max(14, (to[0] - from[0]) / 2);
      lines.moveTo(...from);
      lines.bezierCurveTo(from[0] + bend / 2, from[1], to[0] - bend, to[1], to[0] - 5, to[1]);
      heads.moveTo(...to);
      heads.lineTo(to[0] - 7, to[1] - 4);
      heads.lineTo(to[0] - 7, to[1] + 4);
    }
    for (const [name, wide] of [["--background", 4], ["--text", 1.5]]) {
      [pen.strokeStyle, pen.fillStyle, pen.lineWidth] = [colour(name), colour(name), wide];
      pen.stroke(lines);
      if (wide > 2) pen.stroke(heads);
      else pen.fill(heads);
    }
    const left = x(data.left[bar]);
    pen.strokeRect(left, y(data.row[bar]) - GANTT_PX / 2, x(data.right[bar]) - left, GANTT_PX);
  }

  function drawRange(pen, x, colour) {
    const left = x(range.from), high = (range.last - range.first + 1) * GANTT_PX;
    const box = [left, range.first * GANTT_PX, x(range.to) - left, high];
    [pen.fillStyle, pen.strokeStyle, pen.lineWidth] = [colour("--link"), colour("--link"), 1.5];
    pen.globalAlpha = 0.15;
    pen.fillRect(...box);
    pen.globalAlpha = 1;
    pen.strokeRect(...box);
  }

  // Zoom, filter and the chosen range

  function look(start, width) {
    const wide = Math.min(data.span, Math.max(width, data.span * WIDEST_ZOOM));
    const from = Math.max(0, Math.min(start, data.span - wide));
    view = {start: from, end: from + wide};
    redraw();
  }

  function zoom(factor, at = null) { // around a time; else around the middle, or the end if that is in view
    const width = view.end - view.start, isAtEnd = view.end >= data.span * 0.999;
    const fixed = at ?? (isAtEnd ? view.end : (view.start + view.end) / 2);
    look(fixed - (fixed - view.start) * factor, width * factor);
  }

  const move = (part) => look(view.start + part * (view.end - view.start), view.end - view.start);
  const reset = () => look(0, data.span);
  const toRange = () => { if (range) look(range.from, range.to - range.from); };

  function filter(words) {
    const found = new Set(), matching = new Set(), has = (text) => text.toLowerCase().includes(words);
    const places = rows.map((row) => has(row.title)), names = data.names.map(has), notes = data.notes.map(has);
    for (let i = 0; i < number; i++) {
      if (places[data.row[i]] || names[data.name[i]] || notes[data.note[i]]) matching.add(i), found.add(data.row[i]);
    }
    isMatch = (i) => matching.has(i);
    let heading = -1;
    rows.forEach((row, i) => {
      if (row.classList.contains("heading")) heading = i;
      else if (places[i] || found.has(i)) found.add(i).add(heading);
    });
    shownRows = rows.map((_, i) => i).filter((i) => words === "" || found.has(i));
    slots = rows.map(() => NaN);
    shownRows.forEach((row, slot) => { slots[row] = slot; });
    rows.forEach((row, i) => { row.hidden = Number.isNaN(slots[i]); });
    const tasks = [...matching].reduce((all, i) => all + (isTask(i) ? data.count[i] : 0), 0);
    const lanes = shownRows.filter((i) => !rows[i].classList.contains("heading")).length;
    find("[role=status]").textContent = words && `Rows: ${lanes}, tasks: ${tasks.toLocaleString("en")}`;
    choose(null);
  }

  function choose(chosen) {
    range = chosen;
    sum.hidden = !range;
    if (range) showSum();
    redraw();
  }

  function showSum() { // tasks, failures and time by function
    const chosen = new Set(shownRows.slice(range.first, range.last + 1)), lasts = range.to - range.from;
    const lanes = new Set(), total = {tasks: 0, failed: 0, busy: 0}, functions = new Map();
    for (let i = 0; i < number; i++) {
      const within = Math.min(data.right[i], range.to) - Math.max(data.left[i], range.from);
      if (!chosen.has(data.row[i]) || !isTask(i) || !isMatch(i)) continue;
      lanes.add(data.row[i]);
      if (within < 0) continue;
      const name = data.names[data.name[i]], one = functions.get(name) ?? {tasks: 0, failed: 0, busy: 0};
      functions.set(name, one);
      for (const part of [one, total]) {
        part.tasks += data.count[i];
        part.failed += data.kind[i] === FAILED_KIND ? data.count[i] : 0;
        part.busy += within * data.busy[i];
      }
    }
    const cells = (name, one) => {
      const share = lanes.size ? `${((100 * one.busy) / (lasts * lanes.size)).toFixed(1)}%` : "";
      return [name, one.tasks.toLocaleString("en"), one.failed.toLocaleString("en"), shortDuration(one.busy), share];
    };
    const order = [...functions].sort((one, other) => other[1].busy - one[1].busy).slice(0, MOST_FUNCTIONS);
    const what = order.length < functions.size ? `all ${functions.size} functions` : "all";
    const lines = [[what, total], ...order].map((one) => textLines("tr", cells(...one), "td"));
    find(".gantt-sum tbody").replaceChildren(...lines);
    const lane = lanes.size === 1 ? "1 lane" : `${lanes.size} lanes`;
    find(".gantt-sum p").textContent =
      `${range.from.toFixed(3)} to ${range.to.toFixed(3)} s (${shortDuration(lasts)}), ${lane} with tasks`;
  }

  // The pointer and keys

  function timeAt(event) {
    const box = place.getBoundingClientRect();
    return view.start + ((event.clientX - box.left) / box.width) * (view.end - view.start);
  }

  const slotAt = (event) => Math.floor((event.clientY - place.getBoundingClientRect().top) / GANTT_PX);

  function at(event) { // the mark or bar at the pointer: {bar, lines, stack}, or null
    const px = (view.end - view.start) / place.clientWidth, time = timeAt(event), row = shownRows[slotAt(event)];
    const mark = data.marks.find((one) => one.row === row && Math.abs(one.at - time) < 7 * px);
    if (mark) return {bar: -1, lines: ["Waits now:", ...mark.texts], stack: mark.stack};
    let best = -1, nearest = NEAR_PX * px;
    for (const i of barsOf[row] ?? []) {
      const distance = Math.max(data.left[i] - time, time - data.right[i], 0);
      if (distance < nearest || (distance === nearest && distance === 0)) [best, nearest] = [i, distance];
    }
    if (best < 0) return null;
    const lines = [...ganttText(data, best, rows[row].title), ...callText(data, best, callees.get(best) ?? [])];
    return {bar: best, lines, stack: data.stacks[data.stack[best]]};
  }

  function showTip(event, found) {
    tip.hidden = !found;
    place.style.cursor = found?.stack ? "pointer" : "";
    if (hovered !== (found?.bar ?? -1)) redraw();
    hovered = found?.bar ?? -1;
    if (!found) return;
    const lines = found.stack ? [...found.lines, "Click: show its stack"] : found.lines;
    tip.replaceChildren(...textLines("div", lines, "div").children);
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18, above = event.clientY - tip.offsetHeight - 12;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${below + tip.offsetHeight > window.innerHeight && above > 0 ? above : below}px`;
  }

  let drag = null, tapped = -2;
  function begin(event) {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const pans = event.shiftKey, time = timeAt(event), slot = slotAt(event);
    drag = {x: event.clientX, time, slot, start: view.start, pans, isMoved: false};
  }

  function follow(event) {
    if (!drag && event.pointerType === "mouse" && event.currentTarget === place) showTip(event, at(event));
    if (!drag || (!drag.isMoved && Math.abs(event.clientX - drag.x) <= NEAR_PX)) return;
    drag.isMoved = true;
    showTip(event, null);
    const px = (view.end - view.start) / place.clientWidth, last = shownRows.length - 1;
    if (drag.pans) return look(drag.start - (event.clientX - drag.x) * px, view.end - view.start);
    const times = [drag.time, timeAt(event)].map((time) => Math.max(0, Math.min(time, data.span)));
    const ends = [drag.slot, slotAt(event)].map((slot) => Math.max(0, Math.min(slot, last)));
    if (event.currentTarget === axes) ends.push(0, last);
    choose({from: Math.min(...times), to: Math.max(...times), first: Math.min(...ends), last: Math.max(...ends)});
  }

  function end(event) {
    const isClick = drag && !drag.isMoved && event.currentTarget === place && event.type === "pointerup";
    drag = null;
    if (!isClick) return;
    const found = at(event), isSecond = event.pointerType === "mouse" || tapped === found?.bar; // a first tap: its text
    tapped = found?.bar ?? -2;
    pinned = found?.bar ?? -1;
    showTip(event, found);
    redraw();
    if (!found) choose(null);
    if (!found?.stack || !isSecond) return;
    showTip(event, null);
    goTo(found.stack);
  }

  const keys = {
    "+": () => zoom(1 / 2), "=": () => zoom(1 / 2), "-": () => zoom(2), 0: reset, Enter: toRange,
    ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), Escape: () => { pinned = -1; choose(null); },
  };
  place.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const canvas of [place, axes]) {
    canvas.addEventListener("pointerdown", begin);
    canvas.addEventListener("pointermove", follow);
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, end);
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") showTip(event, null); });
    canvas.addEventListener("wheel", (event) => { // without a key it scrolls the page
      const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 400), timeAt(event));
      else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) move(sideways / place.clientWidth);
      else return;
      event.preventDefault();
    }, {passive: false});
  }
  window.addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new ResizeObserver(redraw).observe(place.parentElement);

  const words = find("input[type=search]");
  words.addEventListener("input", () => filter(words.value.toLowerCase()));
  gantt.addEventListener("show", () => filter(words.value = "")); // a link or the search leads to a row
  const buttons = {"zoom-in": keys["+"], "zoom-out": keys["-"], reset, "to-range": toRange, clear: keys.Escape};
  for (const [name, action] of Object.entries(buttons)) find(`.${name}`).addEventListener("click", action);
  find(".colours").addEventListener("change", (event) => {
    byFunction = event.target.value === "function";
    find(".by-state").hidden = byFunction;
    find(".by-function").hidden = !byFunction;
    redraw();
  });
  draw();
}

function context2d(canvas, width, height, colour, font) { // cleared, and in units of CSS pixels
  const scale = Math.min(window.devicePixelRatio, Math.sqrt(MOST_PIXELS / Math.max(1, width * height)));
  const size = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  [pen.globalAlpha, pen.fillStyle, pen.font] = [1, colour("--background"), font];
  pen.fillRect(0, 0, width, height);
  return pen;
}

function ganttHatch(pen, colour) {
  const tile = Object.assign(document.createElement("canvas"), {width: 6, height: 6}), dots = tile.getContext("2d");
  dots.fillStyle = colour;
  for (let at = 0; at < 6; at++) dots.fillRect(at, 5 - at, 1.5, 1);
  return pen.createPattern(tile, "repeat");
}

function digitsOf(step) {
  return Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
}

function clockText(time, step) {
  const at = Math.round(time * 1e6) / 1e6, digits = digitsOf(step);
  const text = new Date(Math.floor(at) * 1000).toISOString();
  if (step >= 86400) return text.slice(5, 10);
  return step >= 60 ? text.slice(11, 16) : text.slice(11, 19) + (digits ? (at % 1).toFixed(digits).slice(1) : "");
}

function elapsedText(at, step) {
  return step >= 60 ? shortDuration(at) : `${at.toFixed(digitsOf(step))} s`;
}

function textLines(tag, texts, child) { // an element whose children have these texts
  const made = document.createElement(tag);
  for (const textContent of texts) made.append(Object.assign(document.createElement(child), {textContent}));
  return made;
}

function ganttExtent(data, i) { // where a bar begins and ends within its row, from above
  if (data.level[i] >= 0) return [0.9 - 0.8 * Math.max(0.1, data.level[i]), 0.9];
  return data.kind[i] < FINISHED_KIND ? [0.4, 0.6] : [0.1, 0.9];
}

function ganttText(data, i, row) { // what a bar is, in lines
  const clock = (at) => new Date((data.began + data.offset + at) * 1000).toISOString().slice(11, 23);
  const lasts = shortDuration(data.right[i] - data.left[i]), words = data.words[data.kind[i]];
  const when = `${data.left[i].toFixed(3)} to ${data.right[i].toFixed(3)} s (${clock(data.left[i])})`;
  const note = data.notes[data.note[i]], lines = note ? note.split("\n") : [];
  if (data.level[i] >= 0) return [`${words}: ${data.count[i]} on average`, when, row, ...lines];
  if (data.count[i] > 1) {
    const busy = `busy ${Math.round(100 * data.busy[i])}% of ${lasts}`;
    return [`${data.count[i].toLocaleString("en")} tasks ${words}, ${busy}`, ...lines, when, row];
  }
  const name = data.names[data.name[i]];
  const state = {running: `running for ${lasts}`, finished: `finished after ${lasts}`, failed: `failed after ${lasts}`};
  const task = data.task[i] + data.endings[data.ending[i]];
  return [name, state[words] ?? `${words}: ${lasts}`, ...lines, when, row, `task ${task}`];
}

function callText(data, i, callees) { // what called a bar, and what it called
  const name = (bar) => data.names[data.name[bar]], tasks = callees.reduce((all, bar) => all + data.count[bar], 0);
  const called = [...new Set(callees.map(name))], more = called.length > 5 ? `, and ${called.length - 5} more` : "";
  const calls = tasks ? [`calls ${called.slice(0, 5).join(", ")}${more}: ${tasks.toLocaleString("en")} in all`] : [];
  return [...(data.caller[i] >= 0 ? [`called by ${name(data.caller[i])}`] : []), ...calls];
}
