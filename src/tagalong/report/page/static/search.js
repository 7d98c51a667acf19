// The change that auto expected from the best networks so far, plotted against the effort.
function drawSearch() {
  if (!data.search) return;
  plot('search-curve', () => {
    const traces = data.search.data.map((trace) => ({ ...adaptMarker(trace), line: { ...trace.line, color: adaptColour(trace.line.color) } }));
    return { traces, layout: { ...data.search.layout, legend: LEGEND }, height: 360 };
  });
}
