'use strict';
for (const table of document.querySelectorAll('table.tasks')) {
  const body = table.tBodies[0];
  const value = (row, at) => { const cell = row.cells[at]; return cell.dataset.sort ?? cell.textContent; };
  table.tHead.querySelectorAll('th').forEach((head, at) => {
    const button = document.createElement('button');
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const down = head.getAttribute('aria-sort') === 'ascending';
      for (const other of table.tHead.querySelectorAll('th')) { other.removeAttribute('aria-sort'); }
      head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
      const rows = [...body.rows].sort((a, b) =>
        value(a, at).localeCompare(value(b, at), undefined, {numeric: true}));
      body.append(...(down ? rows.reverse() : rows));
    };
  });
}
function filter(field) {
  const wanted = field.value.toLowerCase();
  for (const row of field.closest('section').querySelectorAll('tbody tr[id]')) {
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
  }
}
// A page that is served may get its field, or rows, later.
function showFields() {
  for (const field of document.querySelectorAll('input[type=search]')) { field.hidden = false; filter(field); }
}
document.addEventListener('input', (event) => { if (event.target.type === 'search') { filter(event.target); } });
showFields();
