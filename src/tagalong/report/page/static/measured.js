// The measured change for each number of networks.
function drawMeasured() {
  if (!data.measured) return;
  plot('measured-curve', (width) => {
    const traces = data.measured.data.map((trace) => ({
      ...adaptMarker(trace),
      line: { ...trace.line, color: trace.mode === 'lines' ? theme().line : adaptColour(trace.line.color) },
      ...(trace.error_y && { error_y: { ...trace.error_y, color: adaptColour(trace.line.color) } }),
    }));
    return { traces, layout: { ...data.measured.layout, legend: LEGEND }, height: width < 560 ? 400 : 360 };
  });
}
