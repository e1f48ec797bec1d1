// Snapshots: a click on a verdict goes to its row.

whenDrawn["past-chart"] = (chart) => {
  for (const renderer of chart.renderers) {
    const source = renderer.data_source;
    if (!("marker" in source.data)) continue;
    source.selected.properties.indices.change.connect(() => {
      const i = source.selected.indices[0];
      if (i === undefined) return;
      goTo(`past-${i + 1}`);
      source.selected.indices = [];
    });
  }
};
