// Draws the figures of the page, and lets readers choose, sort and copy.
const root = document.documentElement;
const darkMode = matchMedia('(prefers-color-scheme: dark)');
const figures = JSON.parse(document.getElementById('data').textContent);
const NARROW = 560; // pixels

// Colors in dark mode, except those that follow the style of the page.
const DARK = { '#2166ac': '#7db8ee', '#b2182b': '#f09a8d', '#0072b2': '#4aa3dc' };
const DARK_SCALE = [[0, '#cf5a48'], [0.2, '#a03a3c'], [0.38, '#572a30'], [0.5, '#23262d'], [0.62, '#1f3f5c'], [0.8, '#2a6592'], [1, '#3a86b8']];

function theme() {
  const style = getComputedStyle(root);
  const [ink, muted, line, raised] = ['--ink', '--muted', '--line', '--raised'].map((name) => style.getPropertyValue(name).trim());
  return { ink, muted, line, raised, dark: darkMode.matches && !root.classList.contains('printing') };
}

// Replaces the colors of a figure, wherever they are, by those of the page.
function recolor(value, colors) {
  if (typeof value === 'string') return colors[value] ?? value;
  if (Array.isArray(value)) return value.map((part) => recolor(part, colors));
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, recolor(part, colors)]));
}

// Cuts a label in the middle. An escaped character counts as one.
function shorten(label, longest) {
  const characters = label.match(/&#?\w+;|./gu) ?? [];
  if (characters.length <= longest) return label;
  const half = Math.floor(longest / 2);
  return [...characters.slice(0, half), '…', ...characters.slice(characters.length - half + 1)].join('');
}

function themed(figure, width) {
  const { ink, muted, line, raised, dark } = theme();
  const colors = { '#000000': ink, '#404040': ink, '#ffffff': raised, '#e4e4e4': line, '#888888': muted, ...(dark && DARK) };
  const { data, layout } = recolor(figure, colors);
  const family = getComputedStyle(document.body).fontFamily;
  Object.assign(layout, {
    width,
    margin: { l: 8, r: 12, t: 12, b: 8 },
    dragmode: false,
    paper_bgcolor: 'rgba(0,0,0,0)',
    plot_bgcolor: 'rgba(0,0,0,0)',
    font: { family, size: 13, color: ink },
    hoverlabel: { bgcolor: raised, bordercolor: muted, font: { family, color: ink, size: 13 }, align: 'left' },
    legend: { orientation: 'h', x: 0, y: 1.02, yanchor: 'bottom' }, // above, where a long one hides no axis
    annotations: [],
  });
  for (const name of ['xaxis', 'yaxis']) {
    const axis = layout[name] ?? {};
    layout[name] = {
      ...axis,
      title: { ...axis.title, font: { size: 13, color: muted }, standoff: 10 },
      ...(axis.ticktext && { ticktext: axis.ticktext.map((label) => shorten(label, width < NARROW ? 12 : 24)) }),
      gridcolor: line, zerolinecolor: muted, fixedrange: true, automargin: true, ticks: '', ticklabelstandoff: 5,
    };
  }
  if (data[0]?.type === 'heatmap') fitHeatmap(data, layout, width, dark);
  else layout.height = heightOf(data, layout, width);
  return { data, layout };
}

// The height that the legend needs in addition, since it grows upwards, depends on its names.
function heightOf(data, layout, width) {
  const names = data.filter(({ showlegend, name }) => name && showlegend !== false).map(({ name }) => name.length);
  const perRow = Math.max(1, Math.floor(width / (7 * Math.max(1, ...names) + 50)));
  const legend = names.length > 1 ? 22 * Math.ceil(names.length / perRow) : 0;
  return (layout.height ?? 460) - 100 + legend;
}

// Cells are squares as large as the width allows. Small ones have no numbers, and tiny ones no names.
function fitHeatmap(data, layout, width, dark) {
  const labels = layout.xaxis.ticktext;
  const n = labels.length;
  const longest = Math.max(...labels.map((label) => label.length));
  const space = Math.min(width / 3, 7.5 * Math.min(24, longest) + 24);
  const cell = Math.min(64, (width - space - 24) / n);
  for (const layer of data) {
    layer.showscale = false;
    layer.textfont = { size: cell < 50 ? 11 : 13 };
    if (cell < 38) delete layer.texttemplate;
    if (dark && Array.isArray(layer.colorscale) && layer.colorscale.length > 2) layer.colorscale = DARK_SCALE;
  }
  const ticks = { showticklabels: cell >= 8, tickfont: { size: cell < 14 ? 8 : cell < 30 ? 11 : 13 } };
  Object.assign(layout.xaxis, ticks, { constrain: undefined, title: { ...layout.xaxis.title, text: '… helps or hurts' } });
  Object.assign(layout.yaxis, ticks, { constrain: undefined, scaleanchor: undefined });
  layout.width = Math.min(width, n * cell + space + 24);
  layout.height = n * cell + 0.75 * space + 50;
}

// Figures are drawn when they come into view, so that the page loads quickly. Those in a folded part wait.
const drawn = new Set();
const nearby = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: '600px' },
);

function draw(place) {
  if (!place.clientWidth) return;
  const { data, layout } = themed(figures[place.id][place.dataset.choice], place.clientWidth);
  place.style.height = `${layout.height}px`;
  Plotly.react(place, data, layout, { displayModeBar: false });
  drawn.add(place);
  nearby.unobserve(place);
}

function prepare(place) {
  const names = Object.keys(figures[place.id] ?? {});
  if (!names.length) {
    place.remove();
    return;
  }
  [place.dataset.choice] = names;
  const width = place.clientWidth || document.querySelector('main').clientWidth;
  place.style.height = `${themed(figures[place.id][names[0]], width).layout.height}px`; // so that nothing moves later
  nearby.observe(place);
  if (names.length < 2) return;
  const select = document.createElement('select');
  select.setAttribute('aria-label', `what to show: ${place.getAttribute('aria-label')}`);
  select.append(...names.map((name) => new Option(name)));
  select.addEventListener('change', () => {
    place.dataset.choice = select.value;
    draw(place);
  });
  document.getElementById(`${place.id}-switches`).append(select);
}

// Clicking a heading sorts a table by its column; clicking again reverses the order. Empty cells come last.
function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector('button').addEventListener('click', () => {
      const sign = heading.getAttribute('aria-sort') === 'ascending' ? -1 : 1;
      for (const other of headings) other.setAttribute('aria-sort', 'none');
      heading.setAttribute('aria-sort', sign === 1 ? 'ascending' : 'descending');
      const body = table.tBodies[0];
      const text = (row) => row.cells[column].textContent.trim();
      const compare = (a, b) => {
        if (!text(a) || !text(b)) return !text(a) - !text(b);
        const [x, y] = [a, b].map((row) => parseFloat(text(row).replaceAll(',', '')));
        return sign * (Number.isNaN(x) || Number.isNaN(y) ? text(a).localeCompare(text(b)) : x - y);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

// The clipboard is not available on pages served without encryption, where selecting the text and copying may work.
async function copyText(element) {
  try {
    await navigator.clipboard.writeText(element.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return document.execCommand('copy');
  }
}

function makeCopyable(button) {
  const status = button.parentElement.querySelector('[role=status]');
  button.hidden = false;
  button.addEventListener('click', async () => {
    status.textContent = '';
    const copied = await copyText(document.getElementById(button.dataset.copies));
    status.textContent = copied ? 'Copied.' : 'Selected; press Ctrl+C or ⌘C to copy.';
  });
}

document.querySelectorAll('.plot').forEach(prepare);
document.querySelectorAll('table.sortable').forEach(makeSortable);
document.querySelectorAll('[data-copies]').forEach(makeCopyable);

// Everything is drawn again when the width or the color scheme changes, and for printing.
const redraw = () => drawn.forEach(draw);
let drawnWidth = root.clientWidth;
addEventListener('resize', () => {
  if (root.clientWidth === drawnWidth) return;
  drawnWidth = root.clientWidth;
  requestAnimationFrame(redraw);
});
darkMode.addEventListener('change', redraw);
addEventListener('beforeprint', () => {
  root.classList.add('printing');
  document.querySelectorAll('.plot').forEach(draw);
});
addEventListener('afterprint', () => {
  root.classList.remove('printing');
  redraw();
});
root.dataset.ready = String(Math.round(performance.now()));
