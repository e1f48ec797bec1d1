// Flame graphs, drawn by d3-flame-graph: zoom to a click, search, the order of time, the callers and callees of one
// function, and the choice of one of several graphs.

const FLAME_ROW_PX = 20, NARROWEST_PX = 2, FLAME_MARK = "#ff8cc6", FLAME_ROOT = "#d0d0d0";

for (const flames of document.querySelectorAll(".flames")) {
  const panels = [...flames.querySelectorAll(".flame")], choices = [...flames.querySelectorAll("input[type=radio]")];
  const choose = (chosen) => panels.forEach((panel, at) => { panel.hidden = at !== chosen; });
  choices.forEach((choice, at) => choice.addEventListener("change", () => choose(at)));
  panels.forEach((panel, at) => {
    panel.addEventListener("show", () => { // a link or the search leads here
      if (choices.length) choices[at].checked = true;
      choose(at);
    });
    drawFlame(panel);
  });
}

function drawFlame(panel) {
  const part = (selector) => panel.querySelector(selector);
  const area = part(".chart"), line = part(".zoomed"), status = part("[role=status]"), search = part("[type=search]");
  const up = part(".up"), reset = part(".reset"), sandwich = part(".sandwich"), order = part(".order");
  const data = JSON.parse(part("script.boxes").textContent);
  const whole = () => treeOf(data.orders[Number(order?.checked ?? 0)]);
  const total = Math.max(1, data.orders[0].total), hint = line.textContent;
  let charts = [], zoomed = null, isMerged = false; // what is drawn; the box that is zoomed to

  function nameOf({data: {step, value}}) {
    return `${step === undefined ? "all" : data.name[step]}  ${percent(value, value < 0.095 * total ? 1 : 0)}`;
  }

  function percent(value, digits) {
    return `${(100 * value / total).toFixed(digits)} %`;
  }

  function describe({data: {step, value}}) {
    const unit = value === 1 ? data.unit.replace(/s$/, "") : data.unit;
    const amount = data.unit === "microseconds" ? shortDuration(value / 1e6) : `${value.toLocaleString("en")} ${unit}`;
    const what = step === undefined ? "all" : `${data.name[step]}, ${data.place[step]}`;
    return `${what}, ${amount}, ${percent(value, 1)}`;
  }

  function draw(...trees) { // callers grow upwards, what they call downwards
    area.replaceChildren();
    const isSeveral = trees.length > 1;
    charts = trees.map((tree, at) => {
      const element = area.appendChild(document.createElement("div"));
      element.className = isSeveral && at === 0 ? "upwards" : "downwards";
      const chart = d3flame.flamegraph().width(area.clientWidth).cellHeight(FLAME_ROW_PX).inverted(at === trees.length - 1)
        .transitionDuration(0).minFrameSize(NARROWEST_PX).resetHeightOnZoom(true).getName(nameOf).label(describe)
        .setColorMapper((box) => box.highlight ? FLAME_MARK : data.colour[box.data.step] ?? FLAME_ROOT)
        .setDetailsHandler((text) => { line.textContent = text ?? (zoomed ? describe(zoomed) : hint); })
        .setSearchMatch((box, words) => box.data.step !== undefined
          && `${data.name[box.data.step]}\n${data.place[box.data.step]}`.toLowerCase().includes(words))
        .setSearchHandler((found) => { // a match within another one is not counted twice
          const outermost = found.filter((box) => !box.ancestors().slice(1).some((outer) => outer.highlight));
          const sum = outermost.reduce((all, box) => all + box.data.value, 0);
          status.textContent = `${found.length.toLocaleString("en")} boxes match, ${percent(sum, 1)} of all`;
        })
        .onClick(select);
      d3flame.select(element).datum(tree).call(chart.tooltip(flameTip(describe)));
      return chart;
    });
    isMerged = isSeveral;
    select(null);
    if (search.value) mark();
  }

  function select(box) { // the box that was zoomed to; an outermost one is no zoom
    zoomed = box?.parent ? box : null;
    up.disabled = zoomed === null;
    sandwich.disabled = zoomed === null;
    reset.disabled = zoomed === null && !isMerged;
    line.textContent = zoomed ? describe(zoomed) : hint;
  }

  function levelUp() { // the next outer box that is wider: the others would show the same
    let outer = zoomed.parent;
    while (outer.parent && outer.data.value === zoomed.data.value) outer = outer.parent;
    chartOf(outer).zoomTo(outer);
  }

  function chartOf(box) {
    return charts.find((chart) => chart.findById(box.id) === box);
  }

  function mark() {
    const words = search.value.toLowerCase();
    area.classList.toggle("searched", words !== "");
    status.textContent = "";
    for (const chart of charts) words ? chart.search(words) : chart.clear();
  }

  search.addEventListener("input", mark);
  up.addEventListener("click", levelUp);
  reset.addEventListener("click", () => isMerged ? draw(whole()) : charts[0].resetZoom());
  sandwich.addEventListener("click", () => draw(...callersAndCallees(data, zoomed.data.step)));
  order?.addEventListener("change", () => draw(whole()));
  new IntersectionObserver((entries, observer) => { // many boxes take a second: not before they are looked at
    if (!entries.some((entry) => entry.isIntersecting)) return;
    observer.disconnect();
    draw(whole());
  }, {rootMargin: "100%"}).observe(area);
  window.addEventListener("beforeprint", () => { if (!charts.length && area.clientWidth) draw(whole()); });
  new ResizeObserver(() => {
    const width = area.clientWidth;
    if (width && charts.length && width !== charts[0].width()) for (const chart of charts) chart.width(width).update();
  }).observe(area);
}

function flameTip(describe) { // one element beside the pointer; titles in all boxes would take longer than the boxes
  const tip = () => {};
  tip.show = (event, box) => {
    flameTip.element ??= document.body.appendChild(document.createElement("div"));
    Object.assign(flameTip.element, {className: "flame-tip", textContent: describe(box), hidden: false});
    const {offsetWidth, offsetHeight, style} = flameTip.element;
    style.left = `${Math.max(0, Math.min(event.clientX + 12, innerWidth - offsetWidth - 8))}px`;
    style.top = `${event.clientY + 20 + offsetHeight < innerHeight ? event.clientY + 20 : event.clientY - offsetHeight - 8}px`;
  };
  tip.hide = () => { if (flameTip.element) flameTip.element.hidden = true; };
  return tip;
}

function treeOf({total, parent, width, step}) { // the boxes as a tree, in their order
  const root = {value: total, children: []}, boxes = [];
  parent.forEach((outer, at) => {
    const inner = {step: step[at], value: width[at], children: [], outer: boxes[outer] ?? null};
    boxes.push(inner);
    (inner.outer ?? root).children.push(inner);
  });
  return root;
}

function callersAndCallees(data, step) { // all outermost boxes of a function as one: with what calls it, what it calls
  const parts = [], wanted = data.function[step];
  (function find(boxes) {
    for (const box of boxes) {
      if (data.function[box.step] === wanted) parts.push({box, value: box.value});
      else find(box.children);
    }
  })(treeOf(data.orders[0]).children);
  return [
    merged(step, parts, ({box, value}) => box.outer ? [{box: box.outer, value}] : []),
    merged(step, parts, ({box}) => box.children.map((inner) => ({box: inner, value: inner.value}))),
  ];
}

function merged(step, parts, next) { // these parts as one box with what is next of them; the same step is one box
  const groups = new Map();
  for (const part of parts.flatMap(next)) {
    if (!groups.has(part.box.step)) groups.set(part.box.step, []);
    groups.get(part.box.step).push(part);
  }
  const children = [...groups].map(([one, group]) => merged(one, group, next)).sort((a, b) => b.value - a.value);
  return {step, value: parts.reduce((sum, part) => sum + part.value, 0), children};
}
