// Merged stacks: a search in frames, names, ranks, nodes and pids shows only what matches.

for (const part of document.querySelectorAll(".stacks")) {
  const input = part.querySelector("input"), button = part.querySelector("button");
  const status = part.querySelector("[role=status]");
  const groups = [...part.querySelectorAll("details.group")].map((element) => ({
    element, wasOpen: element.open, about: element.dataset.searched, rows: [...element.querySelectorAll(".stack")],
  }));
  let texts = null; // of each row, made at the first search

  function textsOf(rows) { // with the frames above a row; only whole matches count among the terms
    const above = [];
    return rows.map((row) => {
      const depth = Number(row.dataset.depth), lines = [...row.querySelectorAll(".line")];
      above.length = depth;
      above.push((depth ? above[depth - 1] + "\n" : "") + lines.map((line) => line.textContent).join("\n").toLowerCase());
      const ends = row.dataset.searched === undefined ? [] : row.dataset.searched.split("\n");
      return {row, depth, lines, frames: above[depth], ends: ends.map((end) => end.split("\t"))};
    });
  }

  function search(words) {
    texts ??= groups.map((group) => textsOf(group.rows));
    let found = 0, all = 0;
    groups.forEach((group, at) => {
      let needed = -1, isAny = false; // the depth of a row above which rows are shown
      for (const text of texts[at].slice().reverse()) {
        const has = (end) => words.every((word) => group.about.includes(word) || text.frames.includes(word)
          || end[0].includes(word) || (end[1] ?? "").includes(` ${word} `));
        const count = text.ends.filter(has).length;
        const isAbove = text.depth < needed;
        text.row.hidden = !count && !isAbove;
        if (!text.row.hidden) needed = text.depth;
        isAny ||= !text.row.hidden;
        found += count;
        all += text.ends.length;
        for (const line of text.lines) {
          const own = line.textContent.toLowerCase();
          line.classList.toggle("hit", words.some((word) => own.includes(word)));
        }
      }
      group.element.hidden = !isAny && words.length > 0;
      group.element.open = words.length ? isAny : group.wasOpen;
    });
    status.textContent = words.length ? `${found.toLocaleString("en")} of ${all.toLocaleString("en")} stacks match` : "";
  }

  input.addEventListener("input", () => search(input.value.toLowerCase().split(/\s+/).filter(Boolean)));
  const areOpen = () => groups.every((group) => group.element.open);
  const name = () => { button.textContent = areOpen() ? "Fold all" : "Unfold all"; };
  for (const group of groups) group.element.addEventListener("toggle", name);
  button.addEventListener("click", () => {
    const wereOpen = areOpen();
    for (const group of groups) group.element.open = !wereOpen;
  });
  name();
  part.addEventListener("show", () => { // what a link leads to is shown with all that is around it
    if (!input.value) return;
    input.value = "";
    search([]);
  });
}
