// Graphs: zoom, moving, search, and emphasis of what is linked with a box. Without it a graph is in a scrolled place.

const LEAST_SCALE = 0.75, HIGHEST_PX = 620; // a graph that is larger is first shown at this scale: 9 px of text

for (const graph of document.querySelectorAll(".graph")) {
  const place = graph.querySelector(".drawing"), svg = place.querySelector("svg");
  if (!svg) continue;
  const boxes = [...svg.querySelectorAll("[data-box]")], links = [...svg.querySelectorAll("[data-from]")];
  const search = graph.querySelector("input"), status = graph.querySelector("[role=status]");
  const {width, height} = svg.viewBox.baseVal;
  let x = 0, y = 0, scale = 1, isFitted = true, pressed, hasMoved = false, matches = [], at = -1;

  function draw() {
    const wide = place.clientWidth / scale, high = place.clientHeight / scale;
    [x, y] = [begin(x, wide, width), begin(y, high, height)];
    svg.setAttribute("viewBox", `${x} ${y} ${wide} ${high}`);
  }

  function begin(start, shown, all) { // as far as the graph reaches; a smaller graph is in the middle
    return shown >= all ? (all - shown) / 2 : Math.min(Math.max(start, 0), all - shown);
  }

  function centre(box) {
    const {x: left, y: top, width: wide, height: high} = box.querySelector("rect").getBBox();
    x = left + wide / 2 - place.clientWidth / scale / 2;
    y = top + high / 2 - place.clientHeight / scale / 2;
    draw();
  }

  function fit(least) {
    scale = Math.min(1, place.clientWidth / width);
    const border = place.offsetHeight - place.clientHeight;
    place.style.height = `${Math.min(HIGHEST_PX, border + Math.max(160, height * Math.max(scale, least)))}px`;
    scale = Math.max(least, Math.min(scale, place.clientHeight / height));
    centre(boxes[0]);
  }

  function zoom(factor, left = place.clientWidth / 2, top = place.clientHeight / 2) { // around a point of the place
    const next = Math.min(4, Math.max(0.02, scale * factor));
    x += left / scale - left / next;
    y += top / scale - top / next;
    scale = next;
    isFitted = false;
    draw();
  }

  function find(words) {
    [matches, at] = [boxes.filter((box) => box.textContent.toLowerCase().includes(words)), -1];
    for (const box of boxes) box.classList.toggle("faded", !matches.includes(box));
    status.textContent = words && `${matches.length} of ${boxes.length} boxes match`;
  }

  function goToNext() {
    if (!search.value || !matches.length) return;
    at = (at + 1) % matches.length;
    isFitted = false;
    scale = Math.max(scale, LEAST_SCALE);
    centre(matches[at]);
    status.textContent = `${at + 1} of ${matches.length} boxes that match`;
  }

  function emphasise(box) { // the links of the box below the pointer
    const isFar = ({from, to}) => box && ![from, to].includes(box.dataset.box);
    for (const link of links) link.classList.toggle("faded", !!isFar(link.dataset));
  }

  place.classList.add("movable");
  new ResizeObserver(() => isFitted ? fit(LEAST_SCALE) : draw()).observe(place);
  place.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the wheel alone scrolls the page
    event.preventDefault();
    const {left, top} = place.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 300), event.clientX - left, event.clientY - top);
  }, {passive: false});
  place.addEventListener("pointerdown", (event) => { pressed = event.button ? undefined : event; hasMoved = false; });
  window.addEventListener("pointerup", () => { pressed = undefined; });
  window.addEventListener("pointermove", (event) => {
    const right = event.clientX - pressed?.clientX, down = event.clientY - pressed?.clientY;
    if (!pressed || !hasMoved && Math.hypot(right, down) < 4) return;
    [x, y] = [x - right / scale, y - down / scale];
    pressed = event;
    hasMoved = true;
    isFitted = false;
    draw();
  });
  place.addEventListener("dragstart", (event) => event.preventDefault());
  place.addEventListener("click", (event) => { if (hasMoved) event.preventDefault(); }, true);
  place.addEventListener("pointerover", (event) => emphasise(event.target.closest("[data-box]")));
  place.addEventListener("pointerleave", () => emphasise());
  for (const name of ["focusin", "show"]) place.addEventListener(name, ({target}) => { // a key, or the page's search
    const box = target.closest("[data-box]") || target.querySelector("[data-box]");
    if (box && (name === "show" || target.matches(":focus-visible"))) centre(box);
  });
  search.addEventListener("input", () => find(search.value.toLowerCase()));
  search.addEventListener("keydown", (event) => { if (event.key === "Enter") goToNext(); });
  graph.querySelector("[data-zoom=all]").addEventListener("click", () => { isFitted = true; fit(0); });
  graph.querySelector("[data-zoom=in]").addEventListener("click", () => zoom(1.4));
  graph.querySelector("[data-zoom=out]").addEventListener("click", () => zoom(1 / 1.4));
}
