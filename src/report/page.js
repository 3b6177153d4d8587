"use strict";
(() => {
  const FILTERED = 8;
  const KEPT = [
    "fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap",
    "stroke-linejoin", "font-size", "font-weight", "text-anchor",
  ];
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);

  function save(name, type, text) {
    const address = URL.createObjectURL(new Blob([text], { type }));
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  // A cell sorts by its number where it has one, and else by its text; what wasn't measured comes last.
  function value(cell) {
    const text = cell.textContent.trim();
    const known = cell.dataset.value ?? (/^-?[\d.,]+(e[-+]?\d+)?%?$/i.test(text) ? text.replace(/[,%]/g, "") : "");
    return known === "" ? (text === "-" || text === "" ? null : text) : Number(known);
  }

  function order(a, b) {
    if (a === null || b === null) return 0;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  }

  function sort(table, header) {
    const descends = header.getAttribute("aria-sort") === "ascending";
    const column = header.cellIndex;
    table.querySelectorAll("thead th").forEach((each) => each.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descends ? "descending" : "ascending");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[column]), row]);
    rows.sort(([a], [b]) => (a === null) - (b === null) || (descends ? order(b, a) : order(a, b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function csv(table) {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const cells = (row) => [...row.cells].map((cell) => quoted(cell.dataset.value ?? cell.textContent.trim()));
    return [...table.rows].map((row) => cells(row).join(",")).join("\n") + "\n";
  }

  function equip(table) {
    const name = table.getAttribute("aria-label");
    const tools = make("div", { className: "tools" });
    const rows = [...table.tBodies[0].rows];
    if (rows.length > FILTERED) {
      const input = make("input", { type: "search", placeholder: "Filter rows", ariaLabel: `Filter the rows of: ${name}` });
      const count = make("span", { role: "status", textContent: `${rows.length} rows` });
      input.addEventListener("input", () => {
        const words = input.value.toLowerCase().split(/\s+/);
        for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
        const shown = rows.filter((row) => !row.hidden).length;
        count.textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
      });
      tools.append(input, count);
    }
    const button = make("button", { type: "button", textContent: "CSV", ariaLabel: `Download as CSV: ${name}` });
    button.addEventListener("click", () => save(`${table.dataset.name}.csv`, "text/csv", csv(table)));
    tools.append(button);
    table.closest(".scroll").before(tools);
    for (const header of rows.length > 1 ? table.tHead.rows[0].cells : []) {
      const sorter = make("button", { type: "button" });
      sorter.append(...header.childNodes);
      header.append(sorter);
      sorter.addEventListener("click", () => sort(table, header));
    }
  }

  // A picture that stands alone has the colours that it is seen with here, on the page's own.
  function standalone(svg) {
    const copy = svg.cloneNode(true);
    const mine = [svg, ...svg.querySelectorAll("*")];
    [copy, ...copy.querySelectorAll("*")].forEach((each, place) => {
      const style = getComputedStyle(mine[place]);
      const around = place ? getComputedStyle(mine[place].parentNode) : null;
      for (const key of KEPT) {
        const found = style.getPropertyValue(key);
        if (!around || found !== around.getPropertyValue(key)) each.setAttribute(key, found);
      }
      if (style.opacity !== "1") each.setAttribute("opacity", style.opacity);
      each.removeAttribute("class");
    });
    const { width, height } = svg.viewBox.baseVal;
    const attributes = { xmlns: "http://www.w3.org/2000/svg", width, height, "font-family": "system-ui, sans-serif" };
    for (const [key, text] of Object.entries(attributes)) copy.setAttribute(key, text);
    const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const color = getComputedStyle(document.body).backgroundColor;
    for (const [key, text] of Object.entries({ width, height, fill: color })) ground.setAttribute(key, text);
    copy.prepend(ground);
    return new XMLSerializer().serializeToString(copy);
  }

  document.querySelectorAll("table[data-name]").forEach(equip);
  document.querySelectorAll(".panel").forEach((panel) => {
    const svg = panel.querySelector("svg");
    const name = svg.getAttribute("aria-label");
    const button = make("button", { type: "button", textContent: "SVG", ariaLabel: `Download as SVG: ${name}` });
    button.addEventListener("click", () => save(`${panel.dataset.name}.svg`, "image/svg+xml", standalone(svg)));
    const figure = panel.closest("figure");
    if (!figure.classList.contains("broad")) return figure.querySelector(".tools").append(button);
    const tools = make("div", { className: "tools" });
    tools.append(button);
    panel.append(tools);
  });
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
})();
