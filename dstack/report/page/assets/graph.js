// Graphs: text that grows with its boxes, zoom, search, and clicks that lead to stacks.

const LEAST_SCALE = 0.6; // at which a graph is shown at first, if it is larger than its place
const LEAST_TEXT_PX = 4;

for (const graph of document.querySelectorAll(".graph")) {
  const place = graph.querySelector(".chart"), status = graph.querySelector("[role=status]");
  const search = graph.querySelector("input");

  whenDrawn[place.id] = (chart) => {
    const named = (name) => chart.renderers.filter((one) => one.name === name);
    const source = named("boxes")[0].data_source, data = source.data;
    const links = named("links")[0].data_source;
    const heads = named("heads")[0].data_source, sizes = [...heads.data.size];
    const [width, height, fontPx] = chart.tags, margin = 12;
    const xs = chart.x_range, ys = chart.y_range;
    let hovered, scale = 1, matches = [], at = -1, isFitted = true;

    function centre(x, y) { // with this place in the middle, as far as the graph reaches
      const wide = chart.inner_width / scale, high = chart.inner_height / scale;
      const left = begin(x - wide / 2, wide, width), top = begin(y - high / 2, high, height);
      xs.setv({start: left, end: left + wide});
      ys.setv({start: top + high, end: top});
    }

    function begin(start, shown, all) {
      if (shown >= all + 2 * margin) return (all - shown) / 2;
      return Math.min(Math.max(start, -margin), all + margin - shown);
    }

    function fit(least) {
      const whole = Math.min(chart.inner_width / (width + 2 * margin), chart.inner_height / (height + 2 * margin));
      scale = Math.min(1, Math.max(least, whole));
      centre(data.x[0], data.y[0]);
      xs.reset_start = xs.start; xs.reset_end = xs.end;
      ys.reset_start = ys.start; ys.reset_end = ys.end;
    }

    function zoom(factor) {
      isFitted = false;
      scale = Math.min(4, Math.max(0.02, scale * factor));
      centre((xs.start + xs.end) / 2, (ys.start + ys.end) / 2);
    }

    function resizeText() {
      scale = chart.inner_width / (xs.end - xs.start);
      const px = fontPx * scale, size = {value: `${px.toFixed(2)}px`};
      for (const text of named("texts")) {
        text.visible = px >= LEAST_TEXT_PX;
        text.glyph.text_font_size = size;
      }
      for (let i = 0; i < sizes.length; i++) heads.data.size[i] = Math.max(3, sizes[i] * scale);
      heads.change.emit();
    }

    function find(words) {
      matches = [];
      at = -1;
      for (let i = 0; i < data.x.length; i++) {
        const isMatch = `${data.title[i]}\n${data.text[i]}\n${data.tip[i]}`.toLowerCase().includes(words);
        if (words && isMatch) matches.push(i);
        data.alpha[i] = !words || isMatch ? 1.0 : 0.25;
      }
      status.textContent = words && `${matches.length} of ${data.x.length} boxes match`;
      source.change.emit();
    }

    function goToNext() {
      if (!matches.length) return;
      at = (at + 1) % matches.length;
      isFitted = false;
      scale = Math.max(scale, LEAST_SCALE);
      centre(data.x[matches[at]], data.y[matches[at]]);
      status.textContent = `${at + 1} of ${matches.length} boxes that match`;
    }

    function resize() {
      if (isFitted) fit(LEAST_SCALE);
      else centre((xs.start + xs.end) / 2, (ys.start + ys.end) / 2);
    }

    function emphasise(box) { // the lines of the box below the pointer
      const isNear = (i) => box === undefined || links.data.source[i] === box || links.data.target[i] === box;
      links.data.alpha = links.data.alpha.map((_, i) => isNear(i) ? 1.0 : 0.12);
      links.change.emit();
    }

    const narrow = Math.max(LEAST_SCALE, Math.min(1, chart.inner_width / (width + 2 * margin)));
    chart.height = Math.round(Math.min(chart.height, (height + 2 * margin) * narrow + 32));
    xs.change.connect(resizeText);
    chart.properties.inner_width.change.connect(resize);
    chart.properties.inner_height.change.connect(resize);
    source.selected.properties.indices.change.connect(() => {
      const i = source.selected.indices[0];
      if (i === undefined) return;
      source.selected.indices = [];
      if (data.goes_to[i]) goTo(data.goes_to[i]);
      else status.textContent = "This box has no stack.";
    });
    source.inspect.connect(() => {
      if (source.inspected.indices[0] === hovered) return;
      hovered = source.inspected.indices[0];
      emphasise(hovered);
    });
    search.addEventListener("input", () => find(search.value.toLowerCase()));
    search.addEventListener("keydown", (event) => { if (event.key === "Enter") goToNext(); });
    graph.querySelector("[data-zoom=all]").addEventListener("click", () => { isFitted = true; fit(0); });
    graph.querySelector("[data-zoom=in]").addEventListener("click", () => zoom(1.4));
    graph.querySelector("[data-zoom=out]").addEventListener("click", () => zoom(1 / 1.4));
    resize();
    resizeText();
  };
}
