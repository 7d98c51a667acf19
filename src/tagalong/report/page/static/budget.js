// The groups for a given number of networks, and total affinity as a function of that number.
function drawBudgets() {
  const slider = find('budget-slider');
  if (!slider || !data.budgets.length) return;
  let chosen = data.shown; // the place in the list of budgets, counted from 1
  const curve = plot('budget-curve', () => budgetCurve(chosen), (place) => {
    place.on('plotly_click', (event) => show(data.budgets.findIndex(({ k }) => k === event.points[0].x) + 1));
  });
  const show = (place) => {
    chosen = Math.min(Math.max(place, 1), data.budgets.length);
    slider.value = String(chosen);
    showGroups(data.budgets[chosen - 1]);
    curve();
  };
  showGroups(data.budgets[chosen - 1]);
  slider.addEventListener('input', () => show(Number(slider.value)));
  find('budget-less').addEventListener('click', () => show(chosen - 1));
  find('budget-more').addEventListener('click', () => show(chosen + 1));
}

function showGroups({ k, networks, summary, unsettled }) {
  find('budget-k').textContent = String(k);
  find('budget-slider').setAttribute('aria-valuetext', `${k} network${k === 1 ? '' : 's'}`);
  find('budget-less').disabled = k === data.budgets[0].k;
  find('budget-more').disabled = k === data.budgets.at(-1).k;
  find('budget-summary').textContent = `${summary.join('; ')}.`;
  const cards = networks.map(({ serves, helpers }, number) => {
    const card = document.createElement('article');
    card.className = `card n${number % 8}`;
    const title = card.appendChild(document.createElement('h3'));
    title.appendChild(document.createElement('span')).className = 'swatch';
    title.append(`Network ${number + 1}`);
    const chips = card.appendChild(document.createElement('p'));
    chips.className = 'chips';
    for (const task of serves) chips.append(chip(task, 'served', unsettled.includes(task)), ' ');
    for (const task of helpers) chips.append(chip(task, 'helper', false), ' ');
    return card;
  });
  find('budget-groups').replaceChildren(...cards);
}

function chip(task, kind, unsettled) {
  const element = document.createElement('span');
  element.className = `chip ${kind}`;
  element.textContent = task + mark(task) + (unsettled ? ' ~' : '');
  if (kind === 'helper') element.title = 'trained only to help';
  if (unsettled) element.title = 'its group changes in more than a fifth of the resamples';
  return element;
}

function budgetCurve(chosen) {
  const { muted } = theme();
  const ks = data.budgets.map(({ k }) => k);
  const unit = data.budgets[0].unit;
  const notes = data.budgets.map(({ summary }) => literal(summary.slice(0, 2).join('; ')));
  const bounded = data.budgets.some(({ value, bound }) => Math.abs(bound - value) > 1e-9 * Math.abs(value));
  const value = {
    name: 'total affinity', x: ks, y: data.budgets.map((one) => one.value), hovertext: notes, hoverinfo: 'text',
    mode: 'lines+markers', line: { color: COLOURS[0], width: 2 },
    marker: { size: ks.map((k, at) => (at + 1 === chosen ? 13 : 6)), color: COLOURS[0], opacity: 1, line: { width: 0 } },
  };
  const bound = {
    name: 'upper bound', x: ks, y: data.budgets.map((one) => one.bound), hoverinfo: 'skip',
    mode: 'lines', line: { color: muted, dash: 'dot', width: 1.5 },
  };
  const layout = {
    xaxis: { title: { text: 'networks' }, dtick: ks.length > 20 ? 5 : 1, showgrid: false, zeroline: false },
    yaxis: { title: { text: `total affinity${unit}` } },
    showlegend: bounded,
    legend: LEGEND,
  };
  return { traces: bounded ? [bound, value] : [value], layout, height: 240 };
}
