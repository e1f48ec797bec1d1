// Flame graphs: their boxes, labels as long as they fit, zoom to a click, search, the order of time, the callers and
// callees of one function, and the choice of one of several graphs.

const CHARACTER_PX = 7.3, ROW_PX = 20, AROUND_PX = 16;
const NO_LINE = "#ffffff00", MARK_LINE = "#d6006c", CHOSEN_LINE = "#1b1b1b";

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
  const [status, zoomed, search] = ["[role=status]", ".zoomed", "[type=search]"].map((one) => flame.querySelector(one));
  const [up, reset, sandwich, order] = [".up", ".reset", ".sandwich", ".order"].map((one) => flame.querySelector(one));
  const steps = JSON.parse(flame.querySelector("script.boxes").textContent);
  const source = chart.renderers[0].data_source, range = chart.x_range;
  let boxes, data, total; // what is drawn: one of the orders, or callers and callees
  let current = -1; // the box that is zoomed to

  function draw(drawn) {
    boxes = drawn;
    total = Math.max(1, boxes.total);
    source.data = data = flameColumns(boxes, steps, total);
    const rows = Math.max(0, ...data.top.map((row) => row + 1));
    chart.height = rows * ROW_PX + AROUND_PX;
    chart.y_range.setv({start: rows, end: 0});
    zoomTo(-1);
    mark();
  }

  function label() {
    const px = chart.inner_width / (range.end - range.start);
    for (let i = 0; i < data.left.length; i++) {
      const left = Math.max(data.left[i], range.start);
      const fits = Math.floor(((Math.min(data.right[i], range.end) - left) * px - 6) / CHARACTER_PX);
      const name = data.name[i], longer = `${name}  ${data.share[i]}`;
      data.at[i] = left;
      data.label[i] = fits < 3 ? "" : longer.length <= fits ? longer : name.length <= fits ? name
        : name.slice(0, fits - 1) + "\u2026";
    }
    source.change.emit();
  }

  function zoomTo(i) {
    current = i;
    up.disabled = sandwich.disabled = zoomed.hidden = i < 0;
    reset.disabled = i < 0 && !boxes.row;
    zoomed.textContent = i < 0 ? "" : `${data.name[i]}, ${data.place[i]}, ${data.weight[i]}`;
    range.setv(i < 0 ? {start: 0, end: boxes.extent ?? total} : {start: data.left[i], end: data.right[i]});
    label();
  }

  function outerOf(i) { // the next outer box that is wider: the others would show the same
    let outer = i < 0 ? -1 : boxes.parent[i];
    while (outer >= 0 && boxes.width[outer] === boxes.width[i]) outer = boxes.parent[outer];
    return outer;
  }

  function mark() { // marks what the search finds; its share does not count boxes below a match twice
    const words = search.value.toLowerCase();
    const isBelowMatch = new Array(data.left.length).fill(false);
    let sum = 0, count = 0;
    for (let i = 0; i < data.left.length; i++) {
      const isMatch = words !== "" && `${data.name[i]}\n${data.place[i]}`.toLowerCase().includes(words);
      const isBelow = boxes.parent[i] >= 0 && isBelowMatch[boxes.parent[i]];
      if (isMatch) {
        count += 1;
        sum += isBelow ? 0 : boxes.width[i];
      }
      isBelowMatch[i] = isMatch || isBelow;
      data.line[i] = isMatch ? MARK_LINE : boxes.row && boxes.parent[i] < 0 ? CHOSEN_LINE : NO_LINE;
      data.alpha[i] = words === "" || isMatch ? 1.0 : 0.35;
    }
    status.textContent = words && `${count} boxes match, ${(100 * sum / total).toFixed(1)} % of all`;
    source.change.emit();
  }

  const ordered = () => steps.orders[Number(order?.checked ?? 0)];
  range.change.connect(label);
  chart.properties.inner_width.change.connect(label);
  source.selected.properties.indices.change.connect(() => {
    const i = source.selected.indices[0];
    if (i === undefined) return;
    source.selected.indices = [];
    zoomTo(i === current ? outerOf(i) : i);
  });
  search.addEventListener("input", mark);
  up.addEventListener("click", () => zoomTo(outerOf(current)));
  reset.addEventListener("click", () => boxes.row ? draw(ordered()) : zoomTo(-1));
  sandwich.addEventListener("click", () => draw(callersAndCallees(steps, boxes.step[current])));
  order?.addEventListener("change", () => draw(ordered()));
  draw(ordered());
}

function callersAndCallees(steps, chosen) { // all outermost boxes of a function as one, callers above, callees below
  const {total, parent, width, step} = steps.orders[0], wanted = steps.function[chosen];
  const below = parent.map(() => []), isWithin = [], outermost = [];
  parent.forEach((outer, box) => {
    const part = {box, weight: width[box]}, isOne = steps.function[step[box]] === wanted;
    if (isOne && !isWithin[outer]) outermost.push(part);
    isWithin.push(isOne || isWithin[outer] === true);
    below[outer]?.push(part);
  });
  const extent = sumOf(outermost);
  const found = {total, extent, left: [0], width: [extent], parent: [-1], step: [chosen], row: [0]};

  function add(parts, outer, left, row, by, next) { // what is next of these parts; the same step is one box
    const groups = {};
    for (const part of parts.flatMap(next)) (groups[step[part.box]] ??= []).push(part);
    for (const group of Object.values(groups).sort((a, b) => sumOf(b) - sumOf(a))) {
      const index = found.left.push(left) - 1;
      found.width.push(sumOf(group));
      found.parent.push(outer);
      found.step.push(step[group[0].box]);
      found.row.push(row);
      add(group, index, left, row + by, by, next);
      left += sumOf(group);
    }
  }
  add(outermost, 0, 0, 1, 1, ({box}) => below[box]);
  add(outermost, 0, 0, -1, -1, ({box, weight}) => parent[box] < 0 ? [] : [{box: parent[box], weight}]);
  const first = Math.min(...found.row);
  found.row = found.row.map((row) => row - first);
  return found;
}

function sumOf(parts) {
  return parts.reduce((sum, part) => sum + part.weight, 0);
}

function flameColumns(boxes, steps, total) { // the columns of the chart
  const {left, width, parent, step} = boxes, row = boxes.row ?? [];
  if (!boxes.row) parent.forEach((outer) => row.push(outer < 0 ? 0 : row[outer] + 1));
  const amount = (one) =>
    steps.unit === "microseconds" ? shortDuration(one / 1e6) : `${one.toLocaleString("en")} ${steps.unit}`;
  const percent = (one, digits) => `${(100 * one / total).toFixed(digits)} %`;
  return {
    left, right: left.map((at, i) => at + width[i]),
    top: row, bottom: row.map((one) => one + 0.94), middle: row.map((one) => one + 0.5),
    at: [...left], label: left.map(() => ""), line: left.map(() => NO_LINE), alpha: left.map(() => 1),
    name: step.map((i) => steps.name[i]), place: step.map((i) => steps.place[i]),
    colour: step.map((i) => steps.colour[i]), share: width.map((one) => percent(one, one < 0.095 * total ? 1 : 0)),
    weight: width.map((one) => `${amount(one)}, ${percent(one, 1)}`),
  };
}
