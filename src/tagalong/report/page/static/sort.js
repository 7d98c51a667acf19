// Clicking a heading sorts a table by its column; clicking again reverses the order.
function makeSortable(table) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector('button').addEventListener('click', () => {
      const ascending = heading.getAttribute('aria-sort') !== 'ascending';
      for (const other of headings) other.setAttribute('aria-sort', 'none');
      heading.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
      const rows = [...body.rows];
      rows.sort((a, b) => compare(a.cells[column].dataset.sort, b.cells[column].dataset.sort, ascending));
      body.append(...rows);
    });
  });
}

// Sorts numbers by value and text alphabetically, with empty cells last.
function compare(a, b, ascending) {
  if (a === b) return 0;
  if (a === '' || b === '') return a === '' ? 1 : -1;
  const numbers = !Number.isNaN(Number(a)) && !Number.isNaN(Number(b));
  const order = numbers ? Number(a) - Number(b) : a.localeCompare(b);
  return ascending ? order : -order;
}
