// Draws everything, and redraws when the width or the color scheme changes, and for printing.
const redrawAll = () => redraws.forEach((redraw) => redraw());

drawNetworks();
drawHeatmaps();
drawOverTime();
drawBudgets();
drawMeasured();
drawWorth();
drawSearch();
document.querySelectorAll('table.sortable').forEach(makeSortable);
document.querySelectorAll('[data-copies]').forEach(makeCopyable);

let drawnWidth = root.clientWidth;
addEventListener('resize', () => {
  if (root.clientWidth === drawnWidth) return;
  drawnWidth = root.clientWidth;
  requestAnimationFrame(redrawAll);
});
darkMode.addEventListener('change', redrawAll);
addEventListener('beforeprint', () => {
  root.classList.add('printing');
  redrawAll();
  drawWaiting();
});
addEventListener('afterprint', () => {
  root.classList.remove('printing');
  redrawAll();
});
root.dataset.ready = String(Math.round(performance.now()));
