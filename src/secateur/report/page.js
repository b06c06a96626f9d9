"use strict";
// The page is whole without this: it adds the sorting of tables and the zooming of pictures.

function sorter(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  if (body.rows.length < 2) return;
  const value = (row, place) => {
    const cell = row.cells[place];
    return "value" in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  heads.forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const falls = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [value(one, place), value(other, place)];
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
        const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
        return falls ? -order : order;
      });
      body.append(...rows);
    });
  });
}

function zoomer(picture) {
  const svg = picture.querySelector("svg");
  const whole = { width: svg.getAttribute("width"), height: svg.getAttribute("height") };
  let scale = 1;
  const zoom = (wanted) => {
    const before = scale;
    scale = Math.min(8, Math.max(0.125, wanted));
    const middle = [picture.scrollLeft + picture.clientWidth / 2, picture.scrollTop + picture.clientHeight / 2];
    svg.setAttribute("width", whole.width * scale);
    svg.setAttribute("height", whole.height * scale);
    picture.scrollLeft = (middle[0] * scale) / before - picture.clientWidth / 2;
    picture.scrollTop = (middle[1] * scale) / before - picture.clientHeight / 2;
  };
  const fit = () => zoom(picture.clientWidth / whole.width);
  const bar = document.createElement("div");
  bar.className = "zoom";
  bar.setAttribute("role", "group");
  bar.setAttribute("aria-label", "Zoom");
  const moves = [["+", "Larger", () => zoom(scale * 1.25)], ["−", "Smaller", () => zoom(scale / 1.25)],
    ["1:1", "Actual size", () => zoom(1)], ["Fit", "As wide as the page", fit]];
  for (const [sign, name, move] of moves) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = sign;
    button.title = name;
    button.setAttribute("aria-label", `${name} (${sign})`);
    button.setAttribute("aria-controls", picture.id);
    button.addEventListener("click", move);
    bar.append(button);
  }
  picture.before(bar);
  picture.addEventListener("keydown", (event) => {
    const move = { "+": moves[0], "=": moves[0], "-": moves[1], "0": moves[2] }[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move[2]();
  });
  picture.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(scale * (event.deltaY < 0 ? 1.1 : 1 / 1.1));
  }, { passive: false });
}

document.querySelectorAll("table").forEach(sorter);
document.querySelectorAll(".picture").forEach(zoomer);
