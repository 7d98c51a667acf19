// What auto expected of the best networks it had, against the effort.
function drawSearch() {
  if (!data.search) return;
  plot('search-curve', () => {
    const traces = data.search.data.map((trace) => ({ ...marked(trace), line: { ...trace.line, color: recoloured(trace.line.color) } }));
    return { traces, layout: { ...data.search.layout, legend: LEGEND }, height: 360 };
  });
}
