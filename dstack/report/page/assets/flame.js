// Flame graphs: their boxes, labels as long as they fit, zoom to a click, search, and the choice of one of several.

const CHARACTER_PX = 7.3;
const NO_LINE = "#ffffff00", MARK_LINE = "#d6006c";

for (const flames of document.querySelectorAll(".flames")) {
  const panels = flames.querySelectorAll(".flame");
  for (const choice of flames.querySelectorAll("input[type=radio]")) {
    choice.addEventListener("change", () => panels.forEach((panel, i) => { panel.hidden = i !== Number(choice.value); }));
  }
  panels.forEach((panel) => {
    whenDrawn[panel.querySelector(".chart").id] = (chart) => drawFlame(panel, chart);
  });
}

function drawFlame(flame, chart) {
  const [status, zoomed] = [flame.querySelector("[role=status]"), flame.querySelector(".zoomed")];
  const [up, reset] = [flame.querySelector(".up"), flame.querySelector(".reset")];
  const boxes = JSON.parse(flame.querySelector("script.boxes").textContent);
  const total = Math.max(1, boxes.total), parent = boxes.parent;
  const source = chart.renderers[0].data_source, data = flameColumns(boxes, total), range = chart.x_range;
  let current = -1; // the box that is zoomed to

  function label() {
    const px = chart.inner_width / (range.end - range.start);
    for (let i = 0; i < data.left.length; i++) {
      const left = Math.max(data.left[i], range.start);
      const fits = Math.floor(((Math.min(data.right[i], range.end) - left) * px - 6) / CHARACTER_PX);
      const name = data.name[i];
      data.at[i] = left;
      data.label[i] = fits < 3 ? "" : name.length <= fits ? name : name.slice(0, fits - 1) + "\u2026";
    }
    source.change.emit();
  }

  function zoomTo(i) {
    current = i;
    up.disabled = reset.disabled = zoomed.hidden = i < 0;
    zoomed.textContent = i < 0 ? "" : `${data.name[i]}, ${data.place[i]}, ${data.weight[i]}`;
    range.setv(i < 0 ? {start: 0, end: total} : {start: data.left[i], end: data.right[i]});
  }

  function outerOf(i) { // the next outer box that is wider: the others would show the same
    let outer = i < 0 ? -1 : parent[i];
    while (outer >= 0 && boxes.width[outer] === boxes.width[i]) outer = parent[outer];
    return outer;
  }

  function search(words) { // marks matches; their share does not count boxes below a match twice
    const isBelowMatch = new Array(data.left.length).fill(false);
    let sum = 0, count = 0;
    for (let i = 0; i < data.left.length; i++) {
      const isMatch = words !== "" && `${data.name[i]}\n${data.place[i]}`.toLowerCase().includes(words);
      const isBelow = parent[i] >= 0 && isBelowMatch[parent[i]];
      if (isMatch) {
        count += 1;
        sum += isBelow ? 0 : boxes.width[i];
      }
      isBelowMatch[i] = isMatch || isBelow;
      data.line[i] = isMatch ? MARK_LINE : NO_LINE;
      data.alpha[i] = words === "" || isMatch ? 1.0 : 0.35;
    }
    status.textContent = words && `${count} boxes match, ${(100 * sum / total).toFixed(1)} % of all`;
    source.change.emit();
  }

  source.data = data;
  range.change.connect(label);
  chart.properties.inner_width.change.connect(label);
  source.selected.properties.indices.change.connect(() => {
    const i = source.selected.indices[0];
    if (i === undefined) return;
    source.selected.indices = [];
    zoomTo(i === current ? outerOf(i) : i);
  });
  flame.querySelector("input").addEventListener("input", (event) => search(event.target.value.toLowerCase()));
  up.addEventListener("click", () => zoomTo(outerOf(current)));
  reset.addEventListener("click", () => zoomTo(-1));
  zoomTo(-1);
  label();
}

function flameColumns(boxes, total) { // the columns of the chart
  const {left, width, parent, step, unit} = boxes, depth = [];
  parent.forEach((outer) => depth.push(outer < 0 ? 0 : depth[outer] + 1));
  const weight = (one) => unit === "microseconds" ? shortDuration(one / 1e6) : `${one.toLocaleString("en")} ${unit}`;
  return {
    left, right: left.map((at, i) => at + width[i]),
    top: depth, bottom: depth.map((row) => row + 0.94), middle: depth.map((row) => row + 0.5),
    at: [...left], label: left.map(() => ""), line: left.map(() => NO_LINE), alpha: left.map(() => 1),
    name: step.map((i) => boxes.name[i]), place: step.map((i) => boxes.place[i]),
    colour: step.map((i) => boxes.colour[i]),
    weight: width.map((one) => `${weight(one)}, ${(100 * one / total).toFixed(1)} %`),
  };
}
