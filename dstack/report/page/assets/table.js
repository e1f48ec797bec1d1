// Tables: a click on the head of a column sorts by it; a filter shows the rows that have all its words.

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(head, column));
  });

  function sort(head, column) { // numbers from the largest, text from A; what is unknown comes last
    const isNumber = head.classList.contains("number"), before = head.getAttribute("aria-sort");
    const isDown = before ? before === "ascending" : isNumber;
    for (const one of heads) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => {
      const cell = row.cells[column], value = cell.dataset.value;
      return {row, key: value !== undefined ? Number(value) : isNumber ? null : cell.textContent.trim().toLowerCase()};
    });
    const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), "en", {numeric: true});
    rows.sort((a, b) => a.key === null || b.key === null ? (a.key === null) - (b.key === null)
      : isDown ? compare(b.key, a.key) : compare(a.key, b.key));
    body.append(...rows.map((one) => one.row));
  }
}

for (const part of document.querySelectorAll(".filterable")) {
  const input = part.querySelector("input"), status = part.querySelector("[role=status]");
  const rows = [...part.querySelectorAll("tbody tr")];
  if (!input) continue;

  function filter() { // a word of hidden terms, such as rank:3, has to be whole
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase(), terms = ` ${row.dataset.terms ?? ""} `;
      row.hidden = !words.every((word) => text.includes(word) || terms.includes(` ${word} `));
      found += !row.hidden;
    }
    status.textContent = words.length ? `${found.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows match` : "";
  }

  input.addEventListener("input", filter);
  part.addEventListener("show", () => { // what a link leads to is shown with all that is around it
    input.value = "";
    filter();
  });
}
