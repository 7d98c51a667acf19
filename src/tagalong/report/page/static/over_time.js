// Affinity onto one task while the network learnt: a line and a band per source.
const COLOURED = 10; // lines that can be told apart

function drawOverTime() {
  if (!data.time || !find('over-time')) return;
  const { tasks } = data.time;
  let target = 0;
  const redraw = plot('over-time', (width) => overTime(target, width));
  menu(find('time-task'), tasks, target, (number) => {
    target = number;
    redraw();
  });
}

function overTime(target, width) {
  const { tasks, steps, mean, stderr, highest, window } = data.time;
  const order = highest[target].filter((source) => source !== target);
  const standing = order.slice(0, COLOURED);
  const coloured = [...standing].reverse().flatMap((source) => {
    return sourceLines(source, tasks[source], steps, mean[target][source], stderr[target][source]);
  });
  const traces = [...otherLines(order.slice(COLOURED), target), ...coloured];
  const layout = {
    xaxis: { title: { text: width < 560 ? 'call of the meter' : `call of the meter; each point: ${window} measured steps` }, showgrid: false, zeroline: false },
    yaxis: { title: { text: width < 560 ? '' : 'affinity' }, exponentformat: 'power' },
    showlegend: true,
    legend: { ...LEGEND, traceorder: 'reversed' },
  };
  const longest = Math.max(...standing.map((source) => Math.min(24, tasks[source].length)), 1);
  const across = Math.max(1, Math.floor((width - 60) / (7.5 * longest + 46)));
  return { traces, layout, height: 360 + 20 * Math.ceil(standing.length / across) };
}

function notesOf(name, steps, values, errors) {
  return values.map((value, t) => {
    const error = errors[t] === null ? '' : ` ± ${errors[t]}`;
    return value === null ? '' : `${literal(name)}<br>${value}${error} around call ${Math.round(steps[t])}`;
  });
}

// All lines beyond the highest as one: they are drawn at once, and told apart by pointing at them.
function otherLines(sources, target) {
  if (!sources.length) return [];
  const { tasks, steps, mean, stderr } = data.time;
  const gap = (list) => [...list, null];
  return [{
    name: `${sources.length} others`,
    x: sources.flatMap(() => gap(steps)),
    y: sources.flatMap((source) => gap(mean[target][source])),
    hovertext: sources.flatMap((source) => gap(notesOf(tasks[source], steps, mean[target][source], stderr[target][source]))),
    hoverinfo: 'text', mode: 'lines', line: { color: theme().line, width: 1.5 },
  }];
}

function sourceLines(source, name, steps, values, errors) {
  const colour = recoloured(COLOURS[source % COLOURS.length]);
  const dash = DASHES[Math.floor(source / COLOURS.length) % DASHES.length];
  const shared = { name: label(name, 24), legendgroup: String(source) };
  const drawn = {
    ...shared, x: steps, y: values, hovertext: notesOf(name, steps, values, errors), hoverinfo: 'text',
    mode: 'lines+markers', line: { color: colour, dash, width: 2 }, marker: { size: 3, color: colour },
  };
  const [x, y] = outline(steps, values, errors);
  const band = { ...shared, x, y, mode: 'none', fill: 'toself', fillcolor: `${colour}26`, hoverinfo: 'skip', showlegend: false };
  return [band, drawn];
}

// A polygon around each stretch of points with known errors, with gaps in between.
function outline(steps, values, errors) {
  const across = [];
  const along = [];
  let stretch = [];
  const close = () => {
    const back = [...stretch].reverse();
    across.push(...stretch.map((t) => steps[t]), ...back.map((t) => steps[t]), null);
    along.push(...stretch.map((t) => values[t] + errors[t]), ...back.map((t) => values[t] - errors[t]), null);
    stretch = [];
  };
  values.forEach((value, t) => {
    if (value !== null && errors[t] !== null) stretch.push(t);
    else if (stretch.length) close();
  });
  if (stretch.length) close();
  return [across.slice(0, -1), along.slice(0, -1)];
}
