// The heat map of affinities, one for each estimator and average.
const DARK_SCALE = [
  [0, '#cf5a48'], [0.2, '#a03a3c'], [0.38, '#572a30'], [0.5, '#23262d'],
  [0.62, '#1f3f5c'], [0.8, '#2a6592'], [1, '#3a86b8'],
];
const DARK_PALE = [[0, '#6d4f49'], [0.5, '#23262d'], [1, '#46586a']];

function drawHeatmaps() {
  if (!data.heatmaps.length || !find('heatmap')) return;
  const chosen = { estimator: data.heatmaps[0].estimator, average: data.heatmaps[0].average };
  const entry = () =>
    data.heatmaps.find((one) => one.estimator === chosen.estimator && one.average === chosen.average) ??
    data.heatmaps.find((one) => one.estimator === chosen.estimator);
  const redraw = plot('heatmap', (width) => heatmap(entry(), width));
  for (const name of ['estimator', 'average']) {
    const options = [...new Set(data.heatmaps.map((one) => one[name]))];
    choice(find('affinity-switches'), name, options, chosen[name], (option) => {
      chosen[name] = option;
      redraw();
    });
  }
}

function heatmap({ figure, tasks, unit }, width) {
  const n = tasks.length;
  const longest = width < 560 ? 10 : 24;
  const small = n > 16 || width < 560;
  const names = tasks.map((task) => label(task, longest));
  const space = Math.min(longest, Math.max(...tasks.map((task) => task.length))) * (small ? 6.2 : 7.4) + 24;
  const fitting = Math.floor((width - space - 44) / n);
  const cell = fitting >= 8 ? Math.min(72, fitting) : Math.floor((width - 50) / n);
  find('heatmap-unit').textContent = unit && cell >= 38 ? `numbers${unit}` : '';
  const traces = figure.data.map((trace) => heatLayer(trace, cell));
  const named = cell >= 8; // for smaller cells, hovering shows the names
  const ticks = { tickvals: names.map((_, i) => i), ticktext: names, showticklabels: named, tickfont: { size: cell < 12 ? 8 : small ? 11 : 13 } };
  const layout = { ...figure.layout };
  layout.xaxis = { ...layout.xaxis, ...ticks, title: { text: '… helps or hurts' }, constrain: undefined };
  layout.yaxis = { ...layout.yaxis, ...ticks, title: { text: 'a step on …' }, scaleanchor: undefined, constrain: undefined };
  layout.shapes = layout.shapes.map((shape) => ({ ...shape, line: { color: theme().ink, width: 2 } }));
  const height = n * cell + 0.72 * space + 60;
  return { traces, layout, width: Math.min(width, n * cell + space + 44), height };
}

function heatLayer(trace, cell) {
  const layer = { ...trace, showscale: false, textfont: { size: cell < 50 ? 11 : 13 } };
  if (cell < 38) delete layer.texttemplate;
  if (theme().dark) {
    if (trace.name === 'sure') layer.colorscale = DARK_SCALE;
    if (trace.name === 'within noise') layer.colorscale = DARK_PALE;
    if (trace.name === 'self-affinity') layer.colorscale = [[0, '#3a3f48'], [1, '#3a3f48']];
    if (trace.name === 'never measured') layer.colorscale = [[0, '#15181d'], [1, '#15181d']];
  }
  return layer;
}
