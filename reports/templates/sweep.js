// Sorts the table by the column whose head is pressed; again: the other way round.
"use strict";
(() => {
  document.documentElement.classList.remove("no-script");
  const table = document.getElementById("cases");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];

  const key = (row, column) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim();
  const compare = (a, b) => {
    const numbers = [Number(a), Number(b)];
    return numbers.some(Number.isNaN) ? a.localeCompare(b, "en", { numeric: true }) : numbers[0] - numbers[1];
  };

  function sort(column) {
    const head = heads[column];
    const first = head.dataset.first ?? "ascending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row, place) => ({ row, place, key: key(row, column) }));
    rows.sort((a, b) => sign * compare(a.key, b.key) || a.place - b.place);
    body.append(...rows.map((entry) => entry.row));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
  }

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));

  const search = document.getElementById("search");
  search.addEventListener("input", () => {
    const wanted = search.value.toLowerCase();
    let shown = 0;
    for (const row of body.rows) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    document.getElementById("shown").textContent = wanted ? `${shown} of ${body.rows.length}` : "";
  });
})();
