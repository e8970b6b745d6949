// A click on a heading sorts its column: numbers from the highest, names from A; a second click turns the order round.
document.querySelectorAll("table.numbers").forEach((table) => {
  const body = table.tBodies[0];
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const up = before ? before === "descending" : column === 0;
      const key = (row) => row.cells[column].dataset.key;
      const rows = Array.from(body.rows).sort((one, other) => {
        const a = key(one), b = key(other);
        if (a === undefined || b === undefined) { return (a === undefined) - (b === undefined); }
        const order = column === 0 ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
        return up ? order : -order;
      });
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      body.append(...rows);
    });
  });
});
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details").forEach((each) => { each.open = true; });
});
