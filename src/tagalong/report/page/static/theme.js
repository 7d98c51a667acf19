// Colors and sizes of all plots, which depend on light or dark mode, the width of the page, and printing.
const data = JSON.parse(document.getElementById('data').textContent);
const root = document.documentElement;
const darkMode = matchMedia('(prefers-color-scheme: dark)');
const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9', '#000000', '#8c6d31'];
const DASHES = ['solid', 'dash', 'dot', 'dashdot', 'longdash'];
const CONFIG = { displayModeBar: false, displaylogo: false };
const redraws = [];
const unlearnt = new Set(data.unlearnt);

const find = (id) => document.getElementById(id);

// Escapes names for plotly, which interprets tags, entities and, between dollar signs, TeX.
const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '$': '&#36;' };
const literal = (name) => name.replace(/[&<>$]/g, (character) => ESCAPES[character]);

const mark = (name) => (unlearnt.has(name) ? ' †' : '');

function label(name, longest) {
  const characters = [...name]; // slicing the string could cut an emoji in half
  if (characters.length <= longest) return literal(name) + mark(name);
  const half = Math.floor(longest / 2);
  return literal(characters.slice(0, half).join('') + '…' + characters.slice(characters.length - half + 1).join('')) + mark(name);
}

function theme() {
  const style = getComputedStyle(root);
  const read = (name) => style.getPropertyValue(name).trim();
  const dark = darkMode.matches && !root.classList.contains('printing');
  return { ink: read('--ink'), muted: read('--muted'), line: read('--line'), raised: read('--raised'), dark };
}

function applyTheme(layout, width, height) {
  const { ink, muted, line, raised } = theme();
  const family = getComputedStyle(document.body).fontFamily;
  const result = {
    margin: { l: 8, r: 12, t: 12, b: 8 },
    ...layout,
    width,
    height,
    dragmode: false,
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: { family, size: 13, color: ink },
    hoverlabel: { bgcolor: raised, bordercolor: muted, font: { family, color: ink, size: 13 }, align: 'left' },
  };
  for (const [name, axis] of Object.entries(layout)) {
    if (/^[xy]axis/.test(name)) {
      const title = { ...axis.title, font: { size: 13, color: muted }, standoff: 10 };
      result[name] = { ...axis, title, gridcolor: line, zerolinecolor: muted, fixedrange: true, automargin: true, ticks: '', ticklabelstandoff: 5 };
    }
  }
  return result;
}

// Replaces black and white with the colors of text and background, and dark colors with lighter ones in dark mode.
function adaptColour(value) {
  const { ink, raised, dark } = theme();
  const swapped = { '#000000': ink, '#ffffff': raised, ...(dark && { '#2166ac': '#7db8ee', '#b2182b': '#f09a8d' }) };
  return Array.isArray(value) ? value.map((one) => swapped[one] ?? one) : swapped[value] ?? value;
}

function adaptMarker(trace) {
  const marker = { ...trace.marker, color: adaptColour(trace.marker.color) };
  marker.line = { ...trace.marker.line, color: adaptColour(trace.marker.line.color) };
  return { ...trace, marker };
}

// Above the plot, where a long legend does not overlap the axis.
const LEGEND = { orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom' };

// Plots are drawn only when they are scrolled into view, so that a long page loads quickly. Their height is reserved
// from the start, which keeps the content below from moving.
const nearby = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => waiting.get(entry.target)?.()),
  { rootMargin: '800px' },
);
const waiting = new Map();

// Draws a plot when it is scrolled into view; returns a function that redraws it. `drawn` is called the first time.
function plot(id, build, drawn = () => {}) {
  const place = find(id);
  if (!place) return () => {};
  const reserve = () => {
    const figure = build(place.clientWidth);
    place.style.height = `${figure.height}px`;
    return figure;
  };
  const draw = () => {
    const { traces, layout, width, height } = reserve();
    Plotly.react(place, traces, applyTheme(layout, width ?? place.clientWidth, height), CONFIG);
    if (waiting.delete(place)) {
      nearby.unobserve(place);
      drawn(place);
    }
  };
  reserve();
  waiting.set(place, draw);
  nearby.observe(place);
  redraws.push(() => (waiting.has(place) ? reserve() : draw()));
  return () => waiting.has(place) || draw();
}

const drawWaiting = () => waiting.forEach((draw) => draw());

// A row of radio buttons; nothing if there is only one option.
function choice(place, name, options, chosen, changed) {
  if (options.length < 2) return;
  const field = document.createElement('fieldset');
  const legend = field.appendChild(document.createElement('legend'));
  legend.textContent = name;
  for (const option of options) {
    const holder = field.appendChild(document.createElement('label'));
    const input = holder.appendChild(document.createElement('input'));
    Object.assign(input, { type: 'radio', name, value: option, checked: option === chosen });
    input.addEventListener('change', () => changed(option));
    holder.appendChild(document.createElement('span')).textContent = option;
  }
  place.appendChild(field);
}

function menu(select, names, chosen, changed) {
  names.forEach((name, number) => {
    const option = select.appendChild(document.createElement('option'));
    Object.assign(option, { value: String(number), textContent: name, selected: number === chosen });
  });
  select.addEventListener('change', () => changed(Number(select.value)));
}
