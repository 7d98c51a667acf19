// Shows the networks for one budget at a time, first the recommended ones.
function drawNetworks() {
  const panels = [...document.querySelectorAll('#networks .panel')];
  const show = (name) => panels.forEach((panel) => { panel.hidden = panel.dataset.choice !== name; });
  const names = panels.map((panel) => panel.dataset.choice);
  const first = panels.find((panel) => 'recommended' in panel.dataset)?.dataset.choice ?? names[0];
  choice(find('networks-switches'), 'best with', names, first, show);
  show(first);
  // The switches say what the headings say, but headings help screen readers.
  for (const heading of document.querySelectorAll('.panel > h3')) heading.classList.add('unseen');
}
