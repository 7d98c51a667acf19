// Error against cost, and the change for each task with one method.
function drawWorth() {
  if (data.costs.length) {
    let chosen = data.costs[0].name;
    const redraw = plot('cost', (width) => costFigure(data.costs.find(({ name }) => name === chosen), width));
    choice(find('cost-switches'), 'cost', data.costs.map(({ name }) => name), chosen, (option) => {
      chosen = option;
      redraw();
    });
  }
  if (data.changes.length) {
    let number = Math.max(0, data.changes.findIndex(({ first }) => first));
    const redraw = plot('changes', () => changesFigure(data.changes[number]));
    menu(find('changes-method'), data.changes.map(({ name }) => name), number, (other) => {
      number = other;
      redraw();
    });
  }
}

function costFigure({ figure }, width) {
  const traces = figure.data.map((trace) => {
    const adapted = adaptMarker(trace);
    adapted.line = { ...trace.line, color: adaptColour(trace.line.color) };
    adapted.error_y = { ...trace.error_y, color: adaptColour(trace.line.color) };
    adapted.textfont = { size: 11, color: theme().muted };
    return adapted;
  });
  const rows = Math.ceil(traces.length / Math.max(1, Math.floor(width / 110)));
  const layout = { ...figure.layout, legend: LEGEND };
  if (width < 560) layout.xaxis = { ...layout.xaxis, title: { text: 'relative cost' } };
  return { traces, layout, height: 420 + 20 * rows };
}

function changesFigure({ figure }) {
  const traces = figure.data.map((trace) => ({ ...adaptMarker(trace), error_x: { ...trace.error_x, color: theme().muted } }));
  return { traces, layout: figure.layout, height: 24 * figure.layout.yaxis.tickvals.length + 90 };
}
