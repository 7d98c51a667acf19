// Affinity onto one task over training: a line and a band per source.
const MAX_COLORED = 10; // the most lines that readers can tell apart

function drawOverTime() {
  if (!data.time || !find('over-time')) return;
  const { tasks } = data.time;
  let target = 0;
  const redraw = plot('over-time', (width) => overTime(target, width));
  menu(find('time-task'), tasks.map((task) => task + mark(task)), target, (number) => {
    target = number;
    redraw();
  });
}

function overTime(target, width) {
  const { tasks, steps, mean, stderr, highest, extent } = data.time;
  const order = highest[target].filter((source) => source !== target);
  const highlighted = order.slice(0, MAX_COLORED);
  const coloured = [...highlighted].reverse().flatMap((source) => {
    return sourceLines(source, tasks[source], steps, mean[target][source], stderr[target][source]);
  });
  const traces = [...otherLines(order.slice(MAX_COLORED), target), ...coloured];
  const layout = {
    xaxis: { title: { text: width < 560 ? 'meter call' : `meter call; each point: ${extent}` }, showgrid: false, zeroline: false },
    yaxis: { title: { text: width < 560 ? '' : 'affinity' }, exponentformat: 'power' },
    showlegend: true,
    legend: { ...LEGEND, traceorder: 'reversed' },
  };
  const longest = Math.max(...highlighted.map((source) => Math.min(24, tasks[source].length)), 1);
  const across = Math.max(1, Math.floor((width - 60) / (7.5 * longest + 46)));
  return { traces, layout, height: 360 + 20 * Math.ceil(highlighted.length / across) };
}

function hoverTexts(name, steps, values, errors) {
  return values.map((value, t) => {
    const error = errors[t] === null ? '' : ` ± ${errors[t]}`;
    return value === null ? '' : `${literal(name)}<br>${value}${error} around meter call ${Math.round(steps[t])}`;
  });
}

// All other lines as a single trace, which is faster to draw; hovering shows their names.
function otherLines(sources, target) {
  if (!sources.length) return [];
  const { tasks, steps, mean, stderr } = data.time;
  const gap = (list) => [...list, null];
  return [{
    name: `${sources.length} others`,
    x: sources.flatMap(() => gap(steps)),
    y: sources.flatMap((source) => gap(mean[target][source])),
    hovertext: sources.flatMap((source) => gap(hoverTexts(tasks[source], steps, mean[target][source], stderr[target][source]))),
    hoverinfo: 'text', mode: 'lines', line: { color: theme().line, width: 1.5 },
  }];
}

function sourceLines(source, name, steps, values, errors) {
  const colour = adaptColour(COLOURS[source % COLOURS.length]);
  const dash = DASHES[Math.floor(source / COLOURS.length) % DASHES.length];
  const shared = { name: label(name, 24), legendgroup: String(source) };
  const drawn = {
    ...shared, x: steps, y: values, hovertext: hoverTexts(name, steps, values, errors), hoverinfo: 'text',
    mode: 'lines+markers', line: { color: colour, dash, width: 2 }, marker: { size: 3, color: colour },
  };
  const [x, y] = outline(steps, values, errors);
  const band = { ...shared, x, y, mode: 'none', fill: 'toself', fillcolor: `${colour}26`, hoverinfo: 'skip', showlegend: false };
  return [band, drawn];
}

// A polygon around each run of points with known errors, separated by gaps.
function outline(steps, values, errors) {
  const across = [];
  const along = [];
  let run = [];
  const close = () => {
    const back = [...run].reverse();
    across.push(...run.map((t) => steps[t]), ...back.map((t) => steps[t]), null);
    along.push(...run.map((t) => values[t] + errors[t]), ...back.map((t) => values[t] - errors[t]), null);
    run = [];
  };
  values.forEach((value, t) => {
    if (value !== null && errors[t] !== null) run.push(t);
    else if (run.length) close();
  });
  if (run.length) close();
  return [across.slice(0, -1), along.slice(0, -1)];
}
