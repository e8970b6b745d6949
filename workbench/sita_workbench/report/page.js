document.querySelectorAll("table.sortable").forEach(function (table) {
  var heads = Array.from(table.querySelectorAll("thead th"));
  heads.forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var body = table.querySelector("tbody");
      var texts = head.classList.contains("text");
      var before = head.getAttribute("aria-sort");
      var up = before ? before === "descending" : texts;
      var key = function (row) { return row.children[column].getAttribute("data-key"); };
      var rows = Array.from(body.querySelectorAll("tr"));
      rows.sort(function (one, other) {
        var a = key(one), b = key(other);
        if (a === null || b === null) { return (a === null) - (b === null); }
        var order = texts ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
        return up ? order : -order;
      });
      heads.forEach(function (each) { each.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
});
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details").forEach(function (each) { each.open = true; });
});
