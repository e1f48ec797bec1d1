// The whole page: colours and sizes, what a link leads to, findings to copy, and the search over all sections.

// The policy of the page allows no styles in its HTML.
for (const one of document.querySelectorAll("[data-colour]")) one.style.background = one.dataset.colour;
for (const one of document.querySelectorAll("[data-width]")) one.style.width = `${one.dataset.width}%`;
for (const one of document.querySelectorAll("[data-height]")) one.style.height = `${one.dataset.height}%`;

const heading = document.querySelector("#top h1"), bar = document.querySelector(".bar");
if (heading && bar) { // the bar does not repeat what is in sight
  new IntersectionObserver(([entry]) => bar.classList.toggle("below-heading", entry.isIntersecting)).observe(heading);
}

function show(id) {
  const element = document.getElementById(id);
  if (element) reveal(element);
}

function reveal(element) { // opens what is folded around an element, and goes there; filters give way to the event
  element.dispatchEvent(new CustomEvent("show", {bubbles: true}));
  for (let one = element; one; one = one.parentElement) {
    if (one.tagName === "DETAILS") one.open = true;
    one.hidden = false;
  }
  const isHigh = element.getBoundingClientRect().height > window.innerHeight / 2;
  element.scrollIntoView({block: isHigh ? "start" : "center"});
}

function goTo(id) {
  if (location.hash === "#" + id) show(id);
  else location.hash = id;
}

function showTarget() {
  show(decodeURIComponent(location.hash.slice(1)));
}

window.addEventListener("hashchange", showTarget);
window.addEventListener("load", showTarget);

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await copy(JSON.parse(button.nextElementSibling.textContent));
    button.textContent = "Copied";
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // refused, or absent as in an old browser
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

for (const box of document.querySelectorAll(".bar .search")) setUpSearch(box);

function setUpSearch(box) { // marks a text in all sections, also in folded parts, and goes from match to match
  const MOST_MATCHES = 10000, CSS_MARKS = window.CSS?.highlights;
  const input = box.querySelector("input"), status = box.querySelector("[role=status]");
  const buttons = box.querySelectorAll("button");
  const links = [...document.querySelectorAll(".bar nav a")];
  let ranges = [], at = -1, delay = 0;

  function find() {
    const words = input.value.trim().toLowerCase(), counts = {};
    ranges = [];
    at = -1;
    for (const section of words ? document.querySelectorAll("main > section") : []) {
      const before = ranges.length, walker = document.createTreeWalker(section, NodeFilter.SHOW_TEXT);
      for (let node; ranges.length < MOST_MATCHES && (node = walker.nextNode());) addMatches(node, words);
      counts[section.id] = ranges.length - before;
    }
    for (const link of links) link.classList.toggle("without", counts[link.hash.slice(1)] === 0);
    for (const button of buttons) button.disabled = !ranges.length;
    const number = ranges.length.toLocaleString("en") + (ranges.length >= MOST_MATCHES ? " or more" : "");
    status.textContent = words && `${number} ${ranges.length === 1 ? "match" : "matches"}`;
    highlight("found", ranges);
    highlight("current", []);
  }

  function addMatches(node, words) {
    const {localName, style} = node.parentElement;
    if (localName === "script" || localName === "title" || style.display === "none") return;
    const text = node.data.toLowerCase();
    for (let from = text.indexOf(words); from >= 0; from = text.indexOf(words, from + words.length)) {
      const range = new Range();
      range.setStart(node, Math.min(from, node.length)); // small letters may be longer
      range.setEnd(node, Math.min(from + words.length, node.length));
      ranges.push(range);
    }
  }

  function highlight(name, marked) {
    if (!CSS_MARKS) return;
    const marks = new Highlight();
    for (const range of marked) marks.add(range);
    CSS_MARKS.set(name, marks);
  }

  function go(step) {
    if (!ranges.length) return;
    at = at < 0 && step < 0 ? ranges.length - 1 : (at + step + ranges.length) % ranges.length;
    status.textContent = `${(at + 1).toLocaleString("en")} of ${ranges.length.toLocaleString("en")}`;
    reveal(ranges[at].startContainer.parentElement);
    highlight("current", [ranges[at]]);
  }

  box.hidden = false;
  input.addEventListener("input", () => {
    clearTimeout(delay);
    delay = setTimeout(find, 100);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
  });
  buttons[0].addEventListener("click", () => go(-1));
  buttons[1].addEventListener("click", () => go(1));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea")) return;
    event.preventDefault();
    input.focus();
  });
}

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
