// Draws the charts, gives them the colours of the page, and shows what a link leads to.

// The policy of the page allows no styles in its HTML.
for (const one of document.querySelectorAll("[data-colour]")) one.style.background = one.dataset.colour;
for (const one of document.querySelectorAll("[data-width]")) one.style.width = `${one.dataset.width}%`;
for (const one of document.querySelectorAll("[data-height]")) one.style.height = `${one.dataset.height}%`;

const charts = {}; // by the id of the element in which each is drawn
const whenDrawn = {}; // what a section does with its chart, by the same id
const dark = window.matchMedia("(prefers-color-scheme: dark)");

async function drawCharts() {
  applyTheme();
  for (const element of document.querySelectorAll("script.chart")) {
    const item = JSON.parse(element.textContent);
    const views = await Bokeh.embed.embed_item(item);
    const chart = [...views.roots][0].model;
    charts[item.target_id] = chart;
    colour(chart);
    whenDrawn[item.target_id]?.(chart);
  }
  document.body.dataset.drawn = "yes";
}

function applyTheme() {
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  Object.values(charts).forEach(colour);
}

// A printed page keeps the theme of its charts, which cannot be drawn again in time.
let isPrinting = false;
window.addEventListener("beforeprint", () => { isPrinting = true; });
window.addEventListener("afterprint", () => { isPrinting = false; });
dark.addEventListener("change", () => { if (!isPrinting) applyTheme(); });

function colour(chart) {
  const style = getComputedStyle(document.documentElement);
  const text = style.getPropertyValue("--text"), line = style.getPropertyValue("--line");
  for (const axis of [...chart.left, ...chart.right, ...chart.above, ...chart.below]) {
    set(axis, {major_label_text_color: text, group_text_color: text, axis_label_text_color: text,
               axis_line_color: line, major_tick_line_color: line});
  }
  for (const grid of chart.center) {
    set(grid, {grid_line_color: line});
  }
  for (const renderer of chart.renderers) { // text without a background, and lines, may name a colour of the page
    for (const tag of renderer.tags) {
      const [property, variable] = String(tag).split("=");
      if (variable) renderer.glyph[property] = {value: style.getPropertyValue(variable)};
    }
  }
}

function set(model, values) { // as far as it has these properties
  for (const [name, value] of Object.entries(values)) {
    if (name in model.properties) model[name] = value;
  }
}

function show(id) { // opens what is folded around an element, and goes there; filters give way to the event
  const element = document.getElementById(id);
  element?.dispatchEvent(new CustomEvent("show", {bubbles: true}));
  for (let one = element; one; one = one.parentElement) {
    if (one.tagName === "DETAILS") one.open = true;
    one.hidden = false;
  }
  element?.scrollIntoView({block: "center"});
}

function goTo(id) {
  if (location.hash === "#" + id) show(id);
  else location.hash = id;
}

window.addEventListener("hashchange", () => show(decodeURIComponent(location.hash.slice(1))));

function shortDuration(seconds) { // as in the texts of the page: 0.4 ms, 340 ms, 1.2 s, 3 min 20 s, 2 h 5 min
  if (seconds < 0.00995) return seconds ? `${(1000 * seconds).toFixed(1)} ms` : "0 s";
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  for (const [unit, size, smaller, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]]) {
    const rest = Math.floor(whole % size / part);
    if (whole >= size) return `${Math.floor(whole / size)} ${unit}` + (rest ? ` ${rest} ${smaller}` : "");
  }
  return `${whole} s`;
}
